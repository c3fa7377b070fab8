"""The logs of several parties against each other: a round has one value, whoever wrote it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrfq.audit.audit import LOG, Audit
from fedrfq.audit.log import Audited
from fedrfq.consensus.messages import Certificate, Commit, Evidence, Message, encode
from fedrfq.consensus.rules import Rules

Log = tuple[Audit, Sequence[Audited]]  # one that holds by itself


@dataclass(frozen=True)
class Fork:
    """Two values of one round, each certified by a quorum: more servers than a committee bears have lied."""

    one: tuple[Audit, Audited]
    other: tuple[Audit, Audited]

    @property
    def both(self) -> list[int]:
        """The servers whose signatures stand under both."""
        return sorted(_signers(self.one[1].certificate) & _signers(self.other[1].certificate))

    @property
    def evidence(self) -> list[Message]:
        """Of each of these its two votes, where they are of one view: nobody honest signs both."""
        rules = self.one[0].rules
        one = self.one[1].certificate
        other = self.other[1].certificate
        if one.view != other.view:
            return []
        pairs = [(_vote(rules, one, server), _vote(rules, other, server)) for server in self.both]
        return [rules.unsigned(Evidence(one.record.round, *pair)) for pair in pairs]

    def why(self) -> str:
        """What there is to say, on one line."""
        places = [
            f"{audit.path / LOG}, byte {found.offset}" for audit, found in (self.one, self.other)
        ]
        audit, found = self.one
        f = audit.federation.roster.f
        names = ", ".join(audit.auditor.name(server) for server in self.both)
        if self.evidence:
            proof = "in one view, which is proof against each"
        else:
            proof = "in two views"
        return (
            f"round {found.round} is certified with two values: {places[0]}, and {places[1]}. MORE THAN {f} SERVERS HAVE"
            f" LIED: nothing that this committee certifies is to be relied on. Both have signatures of {names}, {proof}"
        )


def fork(logs: Sequence[Log]) -> Fork | None:
    """The first round of which two logs of one run have different values, if there is one."""
    seen: dict[int, tuple[Audit, Audited]] = {}
    found = [(audit, audited) for audit, rounds in logs for audited in rounds]
    for audit, audited in sorted(found, key=lambda pair: pair[1].round):
        other = seen.setdefault(audited.round, (audit, audited))
        if other[1].certificate.record != audited.certificate.record:
            return Fork(other, (audit, audited))
    return None


def _signers(certificate: Certificate) -> set[int]:
    return {server for server, _ in certificate.signatures}


def _vote(rules: Rules, certificate: Certificate, server: int) -> Message:
    record = certificate.record
    body = Commit(record.round, certificate.view, record.value(rules.run), server)
    return Message(rules.run, body, encode(rules.run, body), dict(certificate.signatures)[server])
