"""The exception that users are meant to see: one line on what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Below this similarity a suggestion is more likely to mislead than to help.
_MIN_SIMILARITY = 0.6


class UserError(Exception):
    """A problem that the user can fix.

    The command line prints the message on one line and exits with code 2. A message says what was
    found, what was expected, and what to do about it.
    """


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
