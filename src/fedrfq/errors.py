"""The exception that users are meant to see: one line on what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")
_V = TypeVar("_V")
# Below this similarity a suggestion is more likely to mislead than to help.
_MIN_SIMILARITY = 0.6


class UserError(Exception):
    """A problem that the user can fix.

    The command line prints the message on one line and exits with code 2. A message says what was
    found, what was expected, and what to do about it.
    """


class _Several(UserError):
    """Faults that have nothing to do with each other."""

    def __init__(self, faults: Sequence[UserError]) -> None:
        listed = "; ".join(f"({number}) {fault}" for number, fault in enumerate(faults, 1))
        super().__init__(f"{len(faults)} things are wrong: {listed}")
        self.faults = faults


def all_of(*steps: Callable[[], Any]) -> list[Any]:
    """Return what each step returns; if some fail, raise one UserError that says all there is.

    So a user mends faults that have nothing to do with each other in one go.
    """
    found = []
    faults: list[UserError] = []
    for step in steps:
        try:
            found.append(step())
        except _Several as several:
            faults += several.faults
        except UserError as error:
            faults.append(error)
    if len(faults) > 1:
        raise _Several(faults) from faults[0]
    if faults:
        raise faults[0]
    return found


def each_of(step: Callable[[str, _V], _T], items: Mapping[str, _V]) -> dict[str, _T]:
    """Return what a step returns for each item's name and value; faults are said as by `all_of`."""
    return dict(zip(items, all_of(*(partial(step, *item) for item in items.items())), strict=True))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return " (did you mean X?)" for the known name closest to `name`, or "" if none is close."""
    # Another case is the nearest there is.
    known = {each.casefold(): each for each in names}
    matches = get_close_matches(name.casefold(), known, n=1, cutoff=_MIN_SIMILARITY)
    if not matches:
        return ""
    return f" (did you mean {known[matches[0]]}?)"


def near_or_own(name: str, names: Iterable[str]) -> str:
    """Return the nearest known name, if one is near, and how to give a plugin that has this one."""
    near = did_you_mean(name, names)
    if near:
        return f"{near}; your own: --plugin FILE"
    return "; your own: --plugin FILE, or fedrfq.load_plugin"


def check_one_of(key: str, value: object, names: Iterable[str], plugins: bool = False) -> None:
    """Refuse a value under a key that takes one of these names; plugins may add to them."""
    known = list(names)
    if value not in known:
        near = (near_or_own if plugins else did_you_mean)(str(value), known)
        raise UserError(f"{key} must be one of {', '.join(known)}, not {value!r}{near}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, for messages of one line."""
    return str(error).strip().split("\n")[0][:300]
