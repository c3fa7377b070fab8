"""The wheel: it has everything that a run needs, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run(
        [sys.executable, "-m", *map(str, command), str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_every_module_and_every_recipe_is_in_it(names: list[str]) -> None:
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    wanted = {
        str(path.relative_to(ROOT / "src")) for path in sources if "__pycache__" not in path.parts
    }
    recipes = {f"fedrfq/experiments/{path.name}" for path in (ROOT / "experiments").glob("*.toml")}
    assert wanted | recipes <= set(names)


def test_nothing_else_is_in_it(names: list[str]) -> None:
    assert {Path(name).parts[0].split("-")[0] for name in names} == {"fedrfq"}
    # What `fedrfq new` writes has tests, too: these are texts.
    code = [Path(name).name for name in names if name.endswith(".py")]
    assert not [name for name in code if name.startswith(("test_", "conftest"))]
