"""What is in a round's result, as `round_log.pack` writes it: a certificate, then the parts.

The public part may be long, and few rounds change it: nodes keep it, and get it only when they do
not have it.
"""

from __future__ import annotations

from collections.abc import Callable

from fedrfq.consensus.messages import Part, PartKind
from fedrfq.federation.round_log import pack, unpack


def result_for_clients(last: bytes) -> bytes:
    """Return what clients learn of a round: the committee's state without the detector's memory.

    Public statistics are left out as long as there are none.
    """
    return _without(last, _is_hidden)


def without_public(last: bytes) -> bytes:
    """Return the result for nodes that have its public part already."""
    return _without(last, _is_public)


def public_in(last: bytes) -> bytes:
    """Return the public part of a result; b"" if there is none."""
    for part in _parts(last):
        if _is_public(part):
            return part.content
    return b""


def has_successor(last: bytes) -> bool:
    """Whether this round changed the federation, which ends the run."""
    return any(part.what == PartKind.SUCCESSOR for part in _parts(last))


def _parts(last: bytes) -> list[Part]:
    bodies = [placed.message.body for placed in unpack(last)]
    return [body for body in bodies if isinstance(body, Part)]


def _without(last: bytes, left_out: Callable[[Part], bool]) -> bytes:
    """Return the result without some of its parts."""
    messages = [placed.message for placed in unpack(last)]
    return pack(
        message
        for message in messages
        if not isinstance(message.body, Part) or not left_out(message.body)
    )


def _is_public(part: Part) -> bool:
    return part.what == PartKind.PUBLIC


def _is_hidden(part: Part) -> bool:
    return part.what == PartKind.STATE or (_is_public(part) and not part.content)
