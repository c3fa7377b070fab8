"""Which messages of a log are still needed: the shortest log that restores the same state."""

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
    """Return the messages of a server's or client's log that a restart needs, in the same order.

    These are the commit certificates of all rounds, all evidence, of which a log has little, the
    parts of the last decided round, everything of the current round, and the mark of a server that
    rejoins for as long as it must be silent. The public part of the last round may be in the log
    since an earlier one, which decided it.

    What is lost are the lists of the last round, with which receipts of that round would be
    compared.
    """
    last = 0
    part_names: tuple[bytes, ...] = ()
    last_mark = None
    # The log is in order, so the last decision and the last mark are those that count.
    for message in messages:
        body = message.body
        if isinstance(body, Cert) and _is_decision(body):
            last = body.certificate.record.round
            part_names = body.certificate.record.parts()
        elif _is_mark(message):
            last_mark = message

    def is_needed(message: Message) -> bool:
        body = message.body
        if _is_mark(message):
            # A question holds until it is answered; the answer is of the last silent round.
            return message is last_mark and (isinstance(body, Fetch) or body.round > last)
        if isinstance(body, Cert) and _is_decision(body):
            return True
        # Of the last round only the certified parts: a server may have computed others too.
        if isinstance(body, Part) and (body.round == last or _is_earlier_public(body, last)):
            return part_digest(body.what, body.content) in part_names
        return body.round > last or isinstance(body, Evidence)

    return [message for message in messages if is_needed(message)]


def _is_earlier_public(body: Part, last: int) -> bool:
    return body.what == PartKind.PUBLIC and body.round < last


def _is_decision(body: Cert) -> bool:
    return body.certificate.phase == Kind.COMMIT


def _is_mark(message: Message) -> bool:
    """Return whether a message marks the log of a server that rejoins."""
    body = message.body
    return isinstance(body, Fetch | Part) and body.what == PartKind.STANDING
