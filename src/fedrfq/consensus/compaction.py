"""What of a log is still needed: the shortest one that a server, or a client, recalls to where it was."""

from __future__ import annotations

from collections.abc import Sequence

from fedrfq.consensus.messages import (
    Cert,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    part_digest,
)


def compacted(messages: Sequence[Message]) -> list[Message]:
    """In the same order: the commit certificates of all rounds, the parts and the evidence of the last one decided, all
    of the current one, and the mark of a server that rejoins for as long as it has to be silent.

    Only the lists of the last round are gone, with which receipts shown after the end of a round are compared.
    """
    decided = [
        m.body.certificate.record for m in messages if isinstance(m.body, Cert) and _commits(m.body)
    ]
    if decided:
        last = decided[-1].round
    else:
        last = 0
    if decided:
        names = {decided[-1].set_, decided[-1].globals_, decided[-1].verdicts, decided[-1].state}
    else:
        names = set()
    marks = [m for m in messages if _marks(m)]

    def needed(message: Message) -> bool:
        body = message.body
        if _marks(message):
            return message is marks[-1] and (isinstance(body, Fetch) or body.round > last)
        if isinstance(body, Cert) and _commits(body):
            return True
        if isinstance(body, Part) and body.round == last:
            return part_digest(body.what, body.content) in names
        return body.round > last or (isinstance(body, Evidence) and body.round == last)

    return [message for message in messages if needed(message)]


def _commits(body: Cert) -> bool:
    return body.certificate.phase == Kind.COMMIT


def _marks(message: Message) -> bool:
    body = message.body
    return isinstance(body, Fetch | Part) and body.what == PartKind.STANDING
