"""What is written down of a round: messages one after the other, each after its length.

In audit.log a round is its CERT, the LISTs its set follows from, the SET, and any EVIDENCE; in bodies.bin the signed UPLOADs
of the set and the parts that were decided on. A party on a network writes down what it has seen of this: the CERT at least,
the LISTs or not, with them the SET or that alone or not, the UPLOADs or not, and of the parts those that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    Cert,
    Evidence,
    Kind,
    Message,
    Part,
    PartKind,
    author,
    decode,
    part_digest,
    unsigned,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused, sized

OUTCOME = (PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE)


class PlacedMessage(NamedTuple):
    """A message and where it begins in what was packed."""

    at: int
    message: Message


def pack(messages: Iterable[Message]) -> bytes:
    return b"".join(sized(message.wire) for message in messages)


def unpack(payload: bytes) -> list[PlacedMessage]:
    """What was packed; any other bytes are refused."""
    reader = Reader(payload)
    found = []
    while reader.left():
        at = reader.at
        found.append(PlacedMessage(at, decode(reader.sized())))
    return found


def parts(run: bytes, round_: int, outcome: Outcome) -> list[Message]:
    """An outcome as messages."""
    return [
        unsigned(run, Part(round_, what, content))
        for what, content in zip(OUTCOME, outcome, strict=True)
    ]


def accusation(evidence: Evidence) -> tuple[int, Kind, Kind, int]:
    """Whom it convicts, by which kinds of messages, and in which round: one proof of it is enough."""
    party = author(evidence.first.body)
    assert party is not None
    return party, evidence.first.body.kind, evidence.second.body.kind, evidence.round


def outcome(bodies: Sequence[Message]) -> Outcome | None:
    """What `parts` made messages of, if it is that."""
    found = [message.body for message in bodies]
    contents = [body.content for body in found if isinstance(body, Part)]
    if [body.what for body in found if isinstance(body, Part)] != list(OUTCOME) or len(
        contents
    ) != len(found):
        return None
    return Outcome(*contents)


def stands(rules: Rules, round_: int, last: bytes) -> bool:
    """Whether these bytes are a round's certificate and, as messages, the outcome that it certifies."""
    try:
        messages = [placed.message for placed in unpack(last)]
    except Refused:
        return False
    if messages:
        cert = messages[0].body
    else:
        cert = None
    found = outcome(messages[1:])
    if not isinstance(cert, Cert) or found is None:
        return False
    record = cert.certificate.record
    digests = tuple(
        part_digest(what, content) for what, content in zip(OUTCOME, found, strict=True)
    )
    return (
        record.round == round_
        and digests == (record.globals_, record.verdicts, record.state)
        and rules.certifies(cert.certificate, Kind.COMMIT)
        and last
        == pack([rules.unsigned(Cert(round_, cert.certificate)), *parts(rules.run, round_, found)])
    )
