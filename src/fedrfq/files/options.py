"""Options that a user may set: a dataclass field with its description and its range.

`fedrfq config --describe` and the reference pages are made from these descriptions, and a test
fails where one is missing.
"""

from __future__ import annotations

from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple


class Described(NamedTuple):
    """One option of a dataclass, as the reference shows it."""

    name: str
    type: str
    default: Any  # MISSING where a value must be given
    help: str
    range: str


def option(default: Any = MISSING, help: str = "", range: str = "", factory: Any = MISSING) -> Any:
    """A dataclass field with a one-line description and, where it has one, its range in words."""
    metadata = {"help": help, "range": range}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def described(cls: type[Any]) -> list[Described]:
    """The options of a dataclass, in the order in which they are declared."""
    found = []
    for one in fields(cls):
        default = one.default
        if one.default_factory is not MISSING:
            default = one.default_factory()
        metadata = one.metadata
        found.append(
            Described(
                one.name,
                str(one.type),
                default,
                metadata.get("help", ""),
                metadata.get("range", ""),
            )
        )
    return found
