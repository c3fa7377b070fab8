"""What `pip` does besides packing the files: with FEDRFQ_COMPILE=1 it compiles the committee's inner loops, by mypyc.

Without it nothing is compiled, and no compiler is needed. The sources are packed either way: a record of what was run names
their hash.
"""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = {
    "consensus": "client essence holdings inbox ledger replica rules standing wire",  # not those of dataclasses with slots
    "simulator": "deciding ideal invariants node seen signing toy world",
}
_MYPY = "[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n[mypy-fedrfq]\nfollow_imports = skip\n"


class Compiling(BuildHookInterface[Any]):
    """Of a wheel; an editable install stays interpreted, or it would go on running what was compiled before a change."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["mypy[mypyc]"] if _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _wanted() or version == "editable":
            return
        self._made = TemporaryDirectory(prefix="fedrfq-")
        made = Path(self._made.name)
        _compile(Path(self.root) / "src", made)
        build_data["force_include"] |= {str(path): str(path.relative_to(made)) for path in made.rglob("*.so")}
        build_data |= {"pure_python": False, "infer_tag": True}


def _wanted() -> bool:
    return os.environ.get("FEDRFQ_COMPILE") == "1"


def _compile(sources: Path, to: Path) -> None:
    """The modules as shared libraries, each where its source is."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    settings = to / "mypy.ini"
    settings.write_text(_MYPY, encoding="ascii")
    options = [f"--config-file={settings}", f"--cache-dir={to / 'cache'}"]
    names = [f"fedrfq/{part}/{name}.py" for part, found in MODULES.items() for name in found.split()]
    with chdir(sources):
        modules = mypycify(options + names, opt_level="2", target_dir=str(to / "c"))
        build = Distribution({"name": "fedrfq", "ext_modules": modules}).get_command_obj("build_ext")
        build.build_lib, build.build_temp = str(to), str(to / "objects")
        build.ensure_finalized()
        build.run()
