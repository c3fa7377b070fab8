"""The one error a user is meant to see: one line that says what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can mend. The command line prints it on one line and exits with code 2."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The known name that was probably meant, as the end of a line."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.5)
    if near:
        return f" (did you mean {near[0]}?)"
    return ""
