"""Compare the logs of several parties: a round has one value, no matter who wrote it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrfq.audit.audit import LOG, Audit
from fedrfq.audit.log import AuditedRound
from fedrfq.consensus.messages import Certificate, Commit, Evidence, Message
from fedrfq.consensus.rules import Rules

Log = tuple[Audit, Sequence[AuditedRound]]  # a log that holds by itself, and its rounds


@dataclass(frozen=True)
class Fork:
    """Two values of one round, each certified by a quorum: more than f servers have lied."""

    one: tuple[Audit, AuditedRound]
    other: tuple[Audit, AuditedRound]

    @property
    def both(self) -> list[int]:
        """The servers that signed both certificates."""
        return sorted(_signers(self.one[1].certificate) & _signers(self.other[1].certificate))

    @property
    def evidence(self) -> list[Message]:
        """The two votes of each of these servers, if they are of one view.

        No honest server signs both. Votes of two views prove nothing: it may have changed its vote
        for a good reason.
        """
        rules = self.one[0].rules
        one = self.one[1].certificate
        other = self.other[1].certificate
        if one.view != other.view:
            return []
        pairs = [(_vote(rules, one, server), _vote(rules, other, server)) for server in self.both]
        return [rules.unsigned(Evidence(one.record.round, *pair)) for pair in pairs]

    def why(self) -> str:
        """Describe the fork on one line."""
        audit, audited = self.one
        names = ", ".join(audit.auditor.name(server) for server in self.both)
        views = "in two views"
        if self.evidence:
            views = "in one view, which is proof against each"
        return (
            f"round {audited.round} is certified with two values: {_place(self.one)}, and"
            f" {_place(self.other)}. MORE THAN {audit.federation.roster.f} SERVERS HAVE LIED:"
            " do not rely on anything that this committee certified. Both values carry the"
            f" signatures of {names}, {views}"
        )


def find_fork(logs: Sequence[Log]) -> Fork | None:
    """Return the first round for which two logs of one run have different values, if any."""
    # Logs need not start or end with the same round, so they are compared round by round.
    all_rounds = [(audit, audited) for audit, rounds in logs for audited in rounds]
    first_seen: dict[int, tuple[Audit, AuditedRound]] = {}
    for audit, audited in sorted(all_rounds, key=lambda pair: pair[1].round):
        other = first_seen.setdefault(audited.round, (audit, audited))
        if other[1].certificate.record != audited.certificate.record:
            return Fork(other, (audit, audited))
    return None


def _place(side: tuple[Audit, AuditedRound]) -> str:
    audit, audited = side
    return f"{audit.path / LOG}, byte {audited.offset}"


def _signers(certificate: Certificate) -> set[int]:
    return {server for server, _ in certificate.signatures}


def _vote(rules: Rules, certificate: Certificate, server: int) -> Message:
    """Return a server's vote as the message that it signed."""
    record = certificate.record
    body = Commit(record.round, certificate.view, record.value(rules.run), server)
    signature = dict(certificate.signatures)[server]
    return Message(rules.run, body, None, signature, rules.protocol)
