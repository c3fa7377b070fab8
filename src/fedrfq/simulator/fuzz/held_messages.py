"""How much a replica holds: messages reachable from it, by whatever way."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import Any

from fedrfq.consensus.messages import (
    Certificate,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Record,
    nested_in,
)

_LEAVES = (str, bytes, int, float, Enum, type(None))
_MANY = (list, tuple, set, frozenset)
_PLAIN = frozenset(
    (str, bytes, int, bool, type(None), Kind, PartKind, Record, Certificate, Part, Fetch)
)  # no message is in them


def attributes(thing: Any) -> dict[str, Any]:
    """By name: those in its slots, or of a compiled class, none where nothing is; and those in its dictionary."""
    slots = _slots(type(thing).__mro__)
    return {name: getattr(thing, name, None) for name in slots} | getattr(thing, "__dict__", {})


@cache
def _slots(kinds: tuple[type, ...]) -> tuple[str, ...]:
    return tuple(
        name
        for kind in kinds
        for name in vars(kind).get("__slots__", vars(kind).get("__mypyc_attrs__", ()))
    )


def messages_held(replica: object, shared: Iterable[object] = ()) -> int:
    """The messages reachable from its attributes, those inside others too, each counted once; not through what it
    shares with others."""
    seen = {id(each) for each in shared}
    reached = list(attributes(replica).values())
    found = 0
    for value in reached:  # it grows as we go
        kind = type(value)
        if kind in _PLAIN or (at := id(value)) in seen:
            continue
        seen.add(at)
        if kind is Message:
            found += 1
            reached += nested_in(value.body)
        elif isinstance(value, dict):
            reached += value.values()
            if Message in map(type, value):
                reached += [key for key in value if type(key) is Message]
        elif isinstance(value, _MANY):
            if not _PLAIN.issuperset(map(type, value)):
                reached += value
        elif not isinstance(value, _LEAVES):
            reached += attributes(value).values()
    return found
