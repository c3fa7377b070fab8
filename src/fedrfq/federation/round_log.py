"""How a round's messages are written to audit.log and bodies.bin: each after its length.

The entry of a round in audit.log holds its CERT, the LISTs that its set follows from, the SET,
and any EVIDENCE. The entry in bodies.bin holds the signed UPLOADs and PROPOSALs of the set and the
parts that were decided; PUBLIC, which may be long, only if it is not as it was last written, and
SUCCESSOR only if there is one. Before the first round PUBLIC is empty.

A party on a network writes what it has seen of this: at least the CERT, perhaps the LISTs and the
SET, or the SET alone, perhaps the UPLOADs and PROPOSALs, and the parts that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    OUTCOME,
    Cert,
    Evidence,
    Kind,
    Message,
    Part,
    PartKind,
    author,
    decode,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused, sized


class PlacedMessage(NamedTuple):
    """A message, and the offset at which it begins in the packed bytes."""

    at: int
    message: Message


def pack(messages: Iterable[Message]) -> bytes:
    """Return the bytes of several messages."""
    return b"".join(sized(message.wire) for message in messages)


def unpack(payload: bytes) -> list[PlacedMessage]:
    """Return the messages that were packed; refuse any other bytes."""
    reader = Reader(payload)
    messages = []
    while reader.left():
        at = reader.at
        messages.append(PlacedMessage(at, decode(reader.sized())))
    return messages


def parts(rules: Rules, round_: int, outcome: Outcome) -> list[Message]:
    """Return an outcome as messages, one for each part; SUCCESSOR only if there is one."""
    return [
        rules.unsigned(Part(round_, what, content))
        for what, content in zip(OUTCOME, outcome, strict=True)
        if content or what is not PartKind.SUCCESSOR
    ]


def changed_parts(rules: Rules, round_: int, outcome: Outcome, public: bytes) -> list[Message]:
    """Return an outcome as messages, but for a PUBLIC that is as it was before."""
    messages = parts(rules, round_, outcome)
    if outcome.public != public:
        return messages
    return [m for m in messages if not (type(m.body) is Part and m.body.what is PartKind.PUBLIC)]


def accusation(evidence: Evidence) -> tuple[int, Kind, Kind, int]:
    """Return whom evidence convicts, by which two kinds of messages, and in which round.

    One proof of each accusation is enough.
    """
    party = author(evidence.first.body)
    assert party is not None
    return party, evidence.first.body.kind, evidence.second.body.kind, evidence.round


def contradiction(first: Kind, second: Kind) -> str:
    """Return in words what the two messages of a piece of evidence are."""
    if first == second:
        return f"two different {first.name} messages"
    return f"{first.name} and {second.name} messages that contradict each other"


def outcome(bodies: Sequence[Message]) -> Outcome | None:
    """Return the outcome that `parts` turned into these messages; None if it did not."""
    kinds = []
    contents = []
    for message in bodies:
        body = message.body
        if not isinstance(body, Part):
            return None
        kinds.append(body.what)
        contents.append(body.content)
    # SUCCESSOR, the last part, is left out where there is none.
    if tuple(kinds) not in (OUTCOME, OUTCOME[:-1]):
        return None
    return Outcome(*contents)


def stands(rules: Rules, round_: int, last: bytes) -> bool:
    """Return whether these bytes are a round's certificate, then the outcome that it certifies."""
    try:
        messages = [placed.message for placed in unpack(last)]
    except Refused:
        return False
    if not messages:
        return False
    cert = messages[0].body
    decided = outcome(messages[1:])
    if not isinstance(cert, Cert) or decided is None:
        return False
    record = cert.certificate.record
    digests = tuple(map(part_digest, OUTCOME, decided))
    if record.round != round_ or digests != record.outcome():
        return False
    if not rules.certifies(cert.certificate, Kind.COMMIT):
        return False
    # Byte for byte, so that nothing uncertified (a round, a run) is hidden in the envelopes.
    cert_message = rules.unsigned(Cert(round_, cert.certificate))
    return last == pack([cert_message, *parts(rules, round_, decided)])
