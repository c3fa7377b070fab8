"""Options that a user may set: a dataclass field with its description and its range.

`fedrfq config --describe` and the reference pages are made from these descriptions, and a test
fails where one is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple

from fedrfq.errors import UserError, did_you_mean

_NUMBER = r"-?[\d,]*\d(?:\.\d+)?(?:e[+-]?\d+)?"
# "1 or more", "above 0, at most 1", "0 to below 1", "0 to clients"; and "0, or 4 to 1000".
_RANGE = re.compile(
    rf"(?:(?P<apart>{_NUMBER}), or )?(?P<above>above )?(?P<least>{_NUMBER})(?P<more> or more)?"
    rf"(?P<to>(?:,| to)(?: at most)?(?P<below> below)? (?P<most>{_NUMBER})| to .*)?"
)
_ONE_OF = "one of "
# What plugins may add to is not known where the option is declared.
_OR_PLUGINS = ", or a plugin's"


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


def one_of(names: Iterable[str], plugins: bool = False) -> str:
    """Return the range of an option that takes one of several names; plugins may add to them."""
    return f"{_ONE_OF}{', '.join(names)}{_OR_PLUGINS if plugins else ''}"


def check_ranges(section: str, options: Any) -> None:
    """Raise UserError where an option of a dataclass has a value outside its declared range."""
    for member in settable(type(options)):
        key = f"{section}.{member.name}" if section else member.name
        check_range(key, getattr(options, member.name), member)


def check_range(key: str, value: Any, member: Field[Any]) -> None:
    """Raise UserError where a value is outside the range that an option declares.

    What a range says after a semicolon, and what is neither numbers nor names, is for people.
    """
    words = member.metadata.get("range", "")
    said = words.partition(";")[0]
    if isinstance(value, str) and said.startswith(_ONE_OF) and not said.endswith(_OR_PLUGINS):
        names = said.removeprefix(_ONE_OF).split(", ")
        if value not in names:
            raise UserError(f"{key} must be {words}, not {value!r}{did_you_mean(value, names)}")
    if isinstance(value, int | float) and not _is_inside(value, said):
        raise UserError(f"{key} must be {words}, not {value}")


def _is_inside(value: float, said: str) -> bool:
    """Return whether a number is in a range; of words that are no range of numbers, any is."""
    found = _RANGE.fullmatch(said)
    if found is None or not (found["above"] or found["more"] or found["to"]):
        return True
    least = _number(found["least"])
    most = _number(found["most"] or "inf")
    if not (math.isfinite(value) and least <= value <= most):
        return value == _number(found["apart"] or "nan")
    return not ((found["above"] and value == least) or (found["below"] and value == most))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


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
