"""`register`: how a plugin's file, a script or a notebook adds something by name."""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.plugins.known import Plugin, check_free, given
from fedrfq.plugins.loading import LOADING
from fedrfq.plugins.packages import installed, package
from fedrfq.plugins.registries import REGISTRIES, misfit
from fedrfq.plugins.source_text import definitions, source_of

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def register(kind: str, name: str, value: Any = None) -> Any:
    """Register something of one's own under a name, as a decorator or with the thing itself.

    >>> @fedrfq.register("method", "pull")
    ... @dataclass(frozen=True)
    ... class Pull(FedProto): ...
    """
    check_kind(kind)
    check_name(kind, name)
    if value is None:
        return lambda made: register(kind, name, made)
    _check_fits(kind, name, value)
    # Rules are registered with their settings, as values.
    entry = value() if kind == "rule" else value
    if LOADING:
        # Its names count once the whole file has been read without an error.
        LOADING[-1].entries[kind, name] = entry
        return value
    plugin = _calling(kind, name, value)
    plugin.entries[kind, name] = entry
    plugin.activate()
    return value


def check_kind(kind: str) -> None:
    """Raise UserError where there is no such kind."""
    if kind not in REGISTRIES:
        raise UserError(
            f"cannot register a {kind!r}: choose one of {', '.join(REGISTRIES)}"
            f"{did_you_mean(str(kind), REGISTRIES)}"
        )


def check_name(kind: str, name: object) -> None:
    """Raise UserError where something of a kind cannot have this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(
            f"a {kind} cannot be named {name!r}: use small letters, digits, '-', '_' and '.', "
            "64 at most"
        )


def _check_fits(kind: str, name: str, value: Any) -> None:
    """Raise UserError where something is not of its kind."""
    check_free(kind, name)
    why = misfit(kind, name, value)
    if why:
        raise UserError(f"{kind} '{name}' cannot be registered: {why}")


def _calling(kind: str, name: str, value: Any) -> Plugin:
    """Return the plugin that a script, a notebook or an imported module makes by registering."""
    caller = _caller()
    for entry in installed():
        if entry.module == caller.get("__name__"):
            return given(package(entry))
    path = Path(caller.get("__file__", ""))
    # What comes from a pipe is called <stdin>, and is no file.
    if path.is_file():
        return given(_of_file(kind, name, value, caller["__name__"], path))
    try:
        source = source_of(value)
    except OSError:
        raise UserError(
            f"the source of {kind} '{name}' cannot be read, so a run could not say what it used: "
            "put it into a file"
        ) from None
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    return given(Plugin(f"notebook {kind} {name}", sha256))


def _of_file(kind: str, name: str, value: Any, module: str, path: Path) -> Plugin:
    """Return the plugin of an imported file, or of what a script registers.

    A script trains as well, and may be changed between two runs: what it registers is known by its
    own source, if it has any, and not by the whole file.
    """
    content = path.read_bytes()
    own = definitions(content.decode()).get(getattr(value, "__name__", ""))
    if module == "__main__" and own is not None:
        return Plugin(f"{kind} {name} of {path.name}", hashlib.sha256(own.encode()).hexdigest())
    return Plugin(path.name, hashlib.sha256(content).hexdigest())


def _caller() -> dict[str, Any]:
    """Return the globals of the nearest code outside this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    assert frame is not None, "somebody called"
    return frame.f_globals
