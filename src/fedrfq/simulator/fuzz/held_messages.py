"""Find the messages that a replica holds: all that can be reached from it."""

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
_COLLECTIONS = (list, tuple, set, frozenset)
# Types without messages inside; looking them up by their exact type is what makes this fast.
_PLAIN = frozenset(
    (str, bytes, int, bool, type(None), Kind, PartKind, Record, Certificate, Part, Fetch)
)


def attributes(thing: Any) -> dict[str, Any]:
    """Return an object's attributes by name; a slot that is not set is None."""
    slots = _slots(type(thing).__mro__)
    return {name: getattr(thing, name, None) for name in slots} | getattr(thing, "__dict__", {})


@cache
def _slots(kinds: tuple[type, ...]) -> tuple[str, ...]:
    return tuple(name for kind in kinds for name in vars(kind).get("__slots__", ()))


def messages_held(replica: object, shared: Iterable[object] = ()) -> list[Message]:
    """Return the different messages that can be reached from a replica's attributes.

    Messages inside messages are among them. What it shares with other replicas is not looked into.
    """
    seen = {id(value) for value in shared}
    reached = list(attributes(replica).values())
    messages = []
    # The list grows as the loop goes.
    for value in reached:
        kind = type(value)
        if kind in _PLAIN or (at := id(value)) in seen:
            continue
        seen.add(at)
        if kind is Message:
            messages.append(value)
            reached += nested_in(value.body)
        elif isinstance(value, dict):
            reached += value.values()
            # Keys are rarely messages, so they are looked at only where one is.
            if Message in map(type, value):
                reached += [key for key in value if type(key) is Message]
        elif isinstance(value, _COLLECTIONS):
            if not _PLAIN.issuperset(map(type, value)):
                reached += value
        elif not isinstance(value, _LEAVES):
            reached += attributes(value).values()
    return messages
