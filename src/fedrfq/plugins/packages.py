"""Plugins of installed packages, which name a module in the entry points `fedrfq.plugins`."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.plugins.known import Plugin, check_rivals, given
from fedrfq.plugins.loading import loading

GROUP = "fedrfq.plugins"
# Installed packages that could not be loaded, and why.
BROKEN: dict[str, str] = {}


@cache
def installed() -> tuple[EntryPoint, ...]:
    """Return what installed packages offer.

    Those that only lie in the current folder are left out: nobody has installed them.
    """
    here = Path.cwd()
    found = []
    for entry in entry_points(group=GROUP):
        if entry.dist is not None and Path(str(entry.dist.locate_file(""))).resolve() != here:
            found.append(entry)
    return tuple(found)


@cache
def load_installed() -> None:
    """Load the plugins of all installed packages, once; one that fails does not stop the others."""
    for entry in installed():
        try:
            plugin = package(entry)
            with loading(plugin, plugin.name):
                entry.load()
            check_rivals(plugin)
            plugin.activate()
        except UserError as error:
            BROKEN[entry.name] = str(error)


def package(entry: EntryPoint) -> Plugin:
    """Return the plugin of a package's entry point, known by the hash of all its Python files."""
    assert entry.dist is not None
    name = f"package {entry.dist.name}"
    # Found, not imported: what it registers while it is imported is to belong to the plugin.
    spec = find_spec(entry.module.split(".")[0])
    if spec is None:
        raise UserError(f"{name} has no module {entry.module}: install it again")
    files = []
    # A package without an __init__.py has folders only.
    if spec.has_location and spec.origin:
        files.append(Path(spec.origin))
    for folder in spec.submodule_search_locations or []:
        files += Path(folder).rglob("*.py")
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return given(Plugin(name, digest.hexdigest()))


def broken() -> list[str]:
    """Return why installed packages could not be loaded, a line for each."""
    return list(BROKEN.values())
