"""Plugin files: loaded because the user names them, and remembered by their hash."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.files.atomic import write_atomically
from fedrfq.plugins.known import LOADED, Plugin, check_rivals, given
from fedrfq.plugins.loading import loading
from fedrfq.plugins.packages import load_installed
from fedrfq.plugins.source_text import definitions

# What the modules that plugin files become are named by.
MODULE_PREFIX = "fedrfq_plugin_"
_MAX_BYTES = 1 << 20  # of a plugin file
# The files that the user has named, as a command line names them again, and what was in them.
FILES: dict[str, bytes] = {}


def load_plugin(path: Path | str) -> Plugin:
    """Load a plugin file because the user names it, and remember it for later commands."""
    path = Path(path)
    content = _read(path)
    # Packages first: one that takes the same name is a rival that must be known.
    load_installed()
    plugin = given(_load(path.name, content, path))
    check_rivals(plugin)
    plugin.activate()
    _remember(plugin.sha256, content)
    FILES[str(path)] = content
    return plugin


def options() -> list[str]:
    """Return the options by which a command gets the same plugin files."""
    return [word for path in FILES for word in ("--plugin", path)]


def _read(path: Path) -> bytes:
    try:
        return regular.read_bytes(path, _MAX_BYTES, links=True)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}: check the path, or make it a package"
        ) from error


def _load(name: str, content: bytes, path: Path) -> Plugin:
    """Run a plugin's file, once for the same bytes, and return what it registers."""
    sha256 = _sha256(content)
    if sha256 in LOADED and LOADED[sha256].entries:
        return LOADED[sha256]
    plugin = _run(Plugin(name, sha256), content, path)
    if not plugin.entries:
        raise UserError(
            f"{path} registers nothing: call fedrfq.register(KIND, NAME, …) in it, as "
            "docs/guides/plugins.md shows"
        )
    LOADED[sha256] = plugin
    return plugin


def _run(plugin: Plugin, content: bytes, path: Path) -> Plugin:
    """Run a file for a plugin, and return the plugin with all that the file registers."""
    module = ModuleType(f"{MODULE_PREFIX}{plugin.sha256[:16]}")
    module.__file__ = str(path)
    # Dataclasses look up the types of their fields there.
    sys.modules[module.__name__] = module
    with loading(plugin, str(path)):
        # Exactly the bytes that were hashed: the file may have changed since.
        exec(compile(content, str(path), "exec"), module.__dict__)
    return plugin


def run_for_its_names(path: Path) -> ModuleType:
    """Return the module that a file becomes, because the user names something in it.

    What it registers does not count: it was not given as a plugin.
    """
    content = _read(path)
    sha256 = _sha256(content)
    if f"{MODULE_PREFIX}{sha256[:16]}" not in sys.modules:
        _run(Plugin(path.name, sha256), content, path)
    return sys.modules[f"{MODULE_PREFIX}{sha256[:16]}"]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def remembered_folder() -> Path:
    """Return where copies of the files lie that this user has given, each named by its hash."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    # What is remembered may run, so it never lies below the current folder, whoever's that is.
    if not Path(base).is_absolute():
        base = Path.home() / ".config"
    return Path(base) / "fedrfq" / "plugins"


def remembered(sha256: str) -> Path:
    """Return where the copy of a file with this hash lies, if there is one."""
    return remembered_folder() / f"{sha256}.py"


def _remember(sha256: str, content: bytes) -> None:
    path = remembered(sha256)
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, content)
    except (OSError, UserError):
        # A home that cannot be written to: later commands need --plugin again.
        return


def recalled(name: str, sha256: str) -> Plugin | None:
    """Return the plugin of a file with these bytes that the user gave before, if there is one.

    A script's class is known by the hash of its own source, in whichever file it stands.
    """
    path = remembered(sha256)
    if not path.is_file():
        return _of_a_class(name, sha256)
    content = _read(path)
    if _sha256(content) != sha256:
        return None
    return _load(name, content, path)


def _of_a_class(name: str, sha256: str) -> Plugin | None:
    """Return the plugin of one class or function of a file that the user gave, now or before."""
    for path, content in _given():
        own = {
            kind
            for kind, text in definitions(content.decode(errors="replace")).items()
            if _sha256(text.encode()) == sha256
        }
        if not own:
            continue
        # Run apart from the whole file's plugin: a run says by a class which of the two it used.
        whole = _run(Plugin(name, sha256), content, path)
        for key, value in list(whole.entries.items()):
            if getattr(value, "__name__", type(value).__name__) not in own:
                del whole.entries[key]
        LOADED[sha256] = whole
        return whole
    return None


def _given() -> Iterator[tuple[Path, bytes]]:
    """Yield the files that the user has given, and those that are remembered, as they were."""
    yield from ((Path(path), content) for path, content in FILES.items())
    for path in sorted(remembered_folder().glob("*.py")):
        content = _read(path)
        if _sha256(content) == path.stem:
            yield path, content
