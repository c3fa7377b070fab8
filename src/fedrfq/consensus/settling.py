"""How a replica concludes a round once it has the round's certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrfq.consensus.events import Decided, Effect, Persist, Publish
from fedrfq.consensus.messages import PREPARE, Cert, Certificate, Record

if TYPE_CHECKING:
    from fedrfq.consensus.replica import Replica

_ROUNDS_PER_QUESTION = 16  # after which the others are asked for evidence that we have missed


def settle(replica: Replica, certificate: Certificate, peer: int) -> None:
    """Conclude the round with a certificate, our own or one that a peer showed us."""
    record = certificate.record
    state = replica.state
    parts = replica.record_parts
    round_ = state.round
    message = replica.rules.unsigned(Cert(round_, certificate))
    # If we voted for the record, its parts were made durable before the vote. They come before the
    # certificate in the log, so that a restart finds the outcome when it finds the decision.
    if not _voted_for(replica, record):
        replica.effects += persisted(replica, record)
    replica.certificates.chain[round_] = certificate
    parts.settle(record)
    state.over = record.ends_run()
    state.outcome = parts.outcome(record)
    decided = Decided(certificate, state.outcome, parts.lists_by_record.get(record, ()))
    replica.effects += [Persist(message), Publish(message), decided]
    replica.early.enter_round()
    replica.enter_round(round_ + 1, replica.upload_lists.current)
    if state.outcome is None:
        # All but the set.
        for fetch in parts.lacking(record):
            replica.request(fetch, peer)
    # Evidence is told to all once, and may be lost on the way.
    if state.round % _ROUNDS_PER_QUESTION == 0:
        replica.ask_for_evidence()


def _voted_for(replica: Replica, record: Record) -> bool:
    vote = replica.state.own.get(PREPARE)
    return vote is not None and vote.value == record.value(replica.rules.run)


def persisted(replica: Replica, record: Record) -> list[Effect]:
    """Return what makes the parts of a record of this round durable."""
    parts = replica.record_parts.unlogged(record)
    return [Persist(replica.rules.unsigned(part)) for part in parts]


def finish_catching_up(replica: Replica) -> None:
    """Report the last round's outcome once all its parts are here."""
    state = replica.state
    parts = replica.record_parts
    certificate = replica.certificates.chain[state.round - 1]
    state.outcome = parts.outcome(certificate.record)
    if state.outcome is None:
        return
    replica.state_changed = True
    replica.effects += [
        Persist(replica.rules.unsigned(part))
        for name, part in parts.last.items()
        if not parts.is_logged(name)
    ]
    replica.effects.append(Decided(certificate, state.outcome, ()))
