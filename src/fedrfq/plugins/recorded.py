"""What experiments say about plugins: claims, compared with what is known on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fedrfq.errors import UserError
from fedrfq.plugins.files import recalled, remembered
from fedrfq.plugins.known import GIVEN, LOADED, Plugin
from fedrfq.plugins.packages import broken, load_installed

_MAX_ROWS = 64  # of plugins that one experiment may name
_HASH = re.compile(r"[0-9a-f]{64}")


class PluginMissing(UserError):
    """An experiment needs a plugin that is not known here, or not in this version."""


def recall(rows: object, exact: bool = True) -> None:
    """Load the plugins that an experiment records, where the user has given or installed them.

    Raise PluginMissing where one is not known here. With `exact`, another version that the user
    gave instead is refused; without, it will do where the recorded one is not known.
    """
    for name, sha256 in _checked(rows):
        if not _recall(name, sha256, exact):
            raise PluginMissing(_missing(name, sha256))


def recall_known(rows: object) -> str:
    """Load those that are known here, and return in words which is the first that is not, or "".

    Raise PluginMissing where the user gave another version.
    """
    missing = [_missing(*row) for row in _checked(rows) if not _recall(*row, exact=True)]
    return next(iter(missing), "")


def _recall(name: str, sha256: str, exact: bool) -> bool:
    """Load a recorded plugin, and return whether it is known here."""
    load_installed()
    known = LOADED.get(sha256) or recalled(name, sha256)
    now = GIVEN.get(name)
    if known is None and now is None:
        # Of a script's class, the file is what the user gave.
        now = GIVEN.get(file_of(name))
    if exact and now is not None and now.sha256 != sha256:
        raise PluginMissing(_changed(name, sha256, now))
    known = known or now
    if known is None:
        return False
    if known.sha256 == sha256:
        # The same bytes under another name are the same plugin, and the same run.
        known.name = name
    known.activate()
    return True


def _checked(rows: object) -> Iterator[tuple[str, str]]:
    """Yield name and hash of each recorded plugin; the rows may come from anybody's file."""
    if not isinstance(rows, list) or len(rows) > _MAX_ROWS:
        raise UserError(f"plugins must be a list of at most {_MAX_ROWS} tables: restore the file")
    for row in rows:
        name = row.get("name") if isinstance(row, Mapping) else None
        sha256 = row.get("sha256") if isinstance(row, Mapping) else None
        if not isinstance(name, str) or not name.isprintable() or len(name) > 200:
            raise UserError("a plugin's name must be a line of text: restore the file")
        if not isinstance(sha256, str) or not _HASH.fullmatch(sha256):
            raise UserError(f"plugin {name}: sha256 must be 64 hexadecimal digits")
        yield name, sha256


def _changed(name: str, sha256: str, now: Plugin) -> str:
    remedy = "restore it"
    if remembered(sha256).is_file():
        remedy = "leave out --plugin, and the version it began with is used"
    return (
        f"{name} is not what this run began with (sha256 {sha256[:12]}… then, "
        f"{now.sha256[:12]}… now): {remedy}, or start a new run"
    )


def _missing(name: str, sha256: str) -> str:
    what = f"this needs the plugin {name} (sha256 {sha256[:12]}…), which is not known here"
    package = name.removeprefix("package ")
    if name != package:
        reasons = "".join(f" ({why})" for why in broken())
        return f"{what}{reasons}: pip install {package}"
    if name.startswith("notebook "):
        return f"{what}: register it in this notebook first, or give a file with it by --plugin"
    return f"{what}: give it with --plugin {file_of(name)}"


def file_of(name: str) -> str:
    """Return the file that a recorded plugin is given by; "" where it is none.

    What a script has registered is called "method pull of train.py".
    """
    if name.startswith(("package ", "notebook ")):
        return ""
    return name.partition(" of ")[2] or name
