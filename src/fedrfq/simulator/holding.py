"""How much a replica holds: messages reachable from it, by whatever way."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from fedrfq.consensus.messages import Message, nested_in

_LEAVES = (str, bytes, int, float, Enum, type(None))


def messages_held(replica: object, shared: Iterable[object] = ()) -> int:
    """The messages reachable from its attributes, those inside others too, each counted once; not through what it
    shares with others."""
    seen = {id(each) for each in shared}
    stack, found = list(vars(replica).values()), 0
    while stack:
        value = stack.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Message):
            found += 1
            stack.extend(nested_in(value.body))
        elif isinstance(value, dict):
            stack.extend(value.values())
            stack.extend(key for key in value if isinstance(key, Message))
        elif isinstance(value, list | tuple | set | frozenset):
            stack.extend(value)
        elif hasattr(value, "__dict__"):
            stack.extend(vars(value).values())
    return found
