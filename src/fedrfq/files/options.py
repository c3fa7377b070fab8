"""Options that a user may set: a dataclass field with its description and its range.

`fedrfq config --describe` and the reference pages are made from these descriptions, and a test
fails where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple


class Described(NamedTuple):
    """One option of a dataclass, as the reference shows it."""

    name: str
    type: str
    default: Any  # MISSING where a value must be given
    help: str
    range: str  # in words; "" where every value of the type will do


# The return type is Any, as that of `dataclasses.field`: a type checker sees `key: int = option(1)`
# as a plain assignment.
def option(
    default: Any = MISSING,
    help: str = "",
    range: str = "",
    *,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """Return a dataclass field with a one-line description and, if it has one, its range.

    A default that may not be shared between instances is given as a `factory` instead.
    """
    metadata = {"help": help, "range": range}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def one_of(names: Iterable[str]) -> str:
    """Return the range of an option that takes one of several names."""
    return f"one of {', '.join(names)}"


def settable(cls: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields that a user may set: none where the class says `has_options = False`."""
    if not getattr(cls, "has_options", True):
        return ()
    return fields(cls)


def described(cls: type[Any]) -> list[Described]:
    """Return the options of a dataclass, in the order in which they are declared."""
    options = []
    for member in settable(cls):
        default = member.default
        if member.default_factory is not MISSING:
            default = member.default_factory()
        options.append(
            Described(
                name=member.name,
                type=str(member.type),
                default=default,
                help=member.metadata.get("help", ""),
                range=member.metadata.get("range", ""),
            )
        )
    return options
