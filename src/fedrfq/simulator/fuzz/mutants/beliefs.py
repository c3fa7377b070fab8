"""Mutants that believe things without proof: certificates, signatures, evidence."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Effect, Event, Received
from fedrfq.consensus.inbox import HANDLERS, on_cert
from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Kind,
    Message,
    PartKind,
    Prepare,
    Receipt,
    Record,
    UploadList,
    author,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.settling import settle
from fedrfq.consensus.votes import Slots
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.mutants.mutant import breaks


def _settle_unverified(replica: Replica, peer: int, message: Message) -> None:
    body = message.body
    assert isinstance(body, Cert)
    if body.round == body.certificate.record.round == replica.round:
        settle(replica, body.certificate, peer)
    else:
        on_cert(replica, peer, message)


@breaks("certificate")
class CertificatesUnverified(Replica):
    """A server that catches up believes any certificate."""

    handlers = HANDLERS | {Cert: _settle_unverified}


def _settle_stale(replica: Replica, peer: int, message: Message) -> None:
    body = message.body
    assert isinstance(body, Cert)
    is_old = body.round < replica.round
    if is_old and replica.rules.certifies(body.certificate, Kind.COMMIT):
        settle(replica, body.certificate, peer)
    else:
        on_cert(replica, peer, message)


@breaks("agreement", "certificate")
class StaleCertificates(Replica):
    """A server that catches up believes a certificate of an earlier round."""

    handlers = HANDLERS | {Cert: _settle_stale}


@breaks("certificate")
class PreparedIsDecided(Rules):
    """A quorum of PREPAREs counts as a quorum of COMMITs."""

    def certifies(self, certificate: Certificate, phase: Kind) -> bool:
        return super().certifies(certificate, certificate.phase)


@breaks("certificate")
class VotesUnsigned(Rules):
    """Votes need no signature."""

    def authentic(self, message: Message) -> bool:
        return isinstance(message.body, Prepare | Commit) or super().authentic(message)


@breaks("certificate")
class NeverVerifiedLater(Replica):
    """Messages that were counted unverified go into certificates and proposals as they are."""

    def verified(self, slots: Slots, messages: Iterable[Message], needed: int) -> list[Message]:
        by_server = sorted(messages, key=lambda message: message.server)
        if len(by_server) < needed:
            return []
        return by_server[:needed]


@breaks("certificate", "validity", "accusation")
class RunUnchecked(Replica):
    """Messages of another run count in this one."""

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            sent = event.message
            ours = Message(self.rules.run, sent.body, sent.raw, sent.signature)
            event = Received(event.peer, ours)
        return super().step(event)


@breaks("validity", "accusation", "double-sign")
class WeakKeys(IdealSignatures):
    """A client may register a key for which others can sign too."""

    def weak(self, key: bytes) -> bool:
        return False


@breaks("accusation")
class EvidenceUnverified(Rules):
    """Evidence is believed without proof."""

    def proves(self, evidence: Evidence) -> bool:
        return author(evidence.first.body) is not None


@breaks("accusation")
class EvidenceReversed(Rules):
    """A list that keeps the promise of a receipt counts as a lie."""

    def conflict(self, a: AnyMessage, b: AnyMessage) -> bool:
        if isinstance(a, Receipt) and isinstance(b, UploadList):
            return author(a) == author(b) and a.round == b.round and not super().conflict(a, b)
        return super().conflict(a, b)


@breaks("accusation")
class ChangesOfMindAccused(Rules):
    """Two votes for different values in different views count as a lie."""

    def conflict(self, a: AnyMessage, b: AnyMessage) -> bool:
        same_phase = author(a) == author(b) and (a.kind, a.round) == (b.kind, b.round)
        if isinstance(a, Prepare | Commit) and isinstance(b, Prepare | Commit):
            return (same_phase and a.value != b.value) or super().conflict(a, b)
        return super().conflict(a, b)


@breaks("certificate")
class ClientBelievesAnything(Client):
    """A client accepts a result without a valid certificate."""

    def _on_cert(self, peer: int, body: Cert) -> None:
        if body.certificate.record.round < self.round:
            super()._on_cert(peer, body)
        else:
            self._settle(peer, body.certificate)


@breaks("validity")
class PublicPartKept(Client):
    """A client keeps the public part that it has when another one is certified."""

    def _unchanged_parts(self, record: Record) -> dict[PartKind, bytes]:
        return {what: part for what, part in self.parts.items() if what == PartKind.PUBLIC}
