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
    """Declare a dataclass field with a one-line description and, if any, its range in words."""
    # In the field's metadata, where it does not change what the dataclass is or hashes to.
    metadata = {"help": help, "range": range}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def described(cls: type[Any]) -> list[Described]:
    """Return the options of a dataclass, in the order in which they are declared."""
    options = []
    for declared in fields(cls):
        default = declared.default
        if declared.default_factory is not MISSING:
            default = declared.default_factory()
        option_help = declared.metadata.get("help", "")
        option_range = declared.metadata.get("range", "")
        options.append(
            Described(declared.name, str(declared.type), default, option_help, option_range)
        )
    return options
