"""What must hold of a round's entry in audit.log, given the public keys and the value of the round before."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.audit.location import Misplaced, at
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Evidence,
    Kind,
    Part,
    PartKind,
    Record,
    UploadList,
    author,
    decode_entries,
    part_digest,
)
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import PlacedMessage, accusation, unpack


@dataclass(frozen=True)
class Charge:
    """Whom evidence convicts, in which round, and of having signed what."""

    round: int
    who: str
    what: str


@dataclass(frozen=True)
class Audited:
    """A round that holds."""

    round: int
    certificate: Certificate
    entries: (
        Entries | None
    )  # the set of uploads; none where the party that wrote this has not seen it
    traced: bool  # the lists are there, and the set follows from them
    charges: tuple[Charge, ...]
    offset: int = 0  # of the entry in its file
    recomputed: bool = False


@dataclass(frozen=True)
class Auditor:
    """By whose rules, and what must be there: of a `partial` log, of one party on a network, what that party has seen."""

    federation: Federation
    rules: Rules
    partial: bool

    def name(self, party: int) -> str:
        """Of a party, as people know it."""
        person = self.rules.roster.person(party)
        if self.federation.network is not None:
            return self.federation.members[person].name
        if person >= 0:
            return f"server {person}"
        return f"client {~person}"


def audited(auditor: Auditor, done: int, previous: bytes, payload: bytes) -> Audited:
    """The round in a payload, after so many with this value at their end; Misplaced where it does not hold."""
    with at():
        messages = unpack(payload)
    rules = auditor.rules
    cert, lists, set_, evidence = _shape(auditor, messages)
    with at(cert):
        certificate = _certified(auditor, done, previous, cert)
    entries = None
    if set_ is not None:
        with at(set_):
            entries = _set(certificate.record, set_)
    for one in lists:
        with at(one):
            _check_list(rules, certificate.record.round, one)
    if lists and entries is not None:
        with at(set_):
            _check_union(rules, lists, entries)
    charges = []
    for one in evidence:
        with at(one):
            charges.append(_charge(auditor, one))
    return Audited(certificate.record.round, certificate, entries, bool(lists), tuple(charges))


def _shape(
    auditor: Auditor, messages: list[PlacedMessage]
) -> tuple[PlacedMessage, list[PlacedMessage], PlacedMessage | None, list[PlacedMessage]]:
    """A CERT, n − f LISTs, a SET, and any number of EVIDENCEs, all of this run; in a partial log, LISTs and SET or not."""
    rules = auditor.rules
    lists = rules.roster.n - rules.roster.f
    due = [Kind.CERT, *[Kind.LIST] * lists, Kind.BODY]
    if auditor.partial:
        if len(messages) > 1:
            second = messages[1].message.body.kind
        else:
            second = None
        if second == Kind.LIST:
            due = due
        else:
            if second == Kind.BODY:
                due = [Kind.CERT, Kind.BODY]
            else:
                due = [Kind.CERT]
    for number, (place, message) in enumerate(messages):
        if number < len(due):
            kind = due[number]
        else:
            kind = Kind.EVIDENCE
        if message.body.kind != kind or message.run != rules.run:
            raise Misplaced(place, f"a {kind.name} of this run is due here")
    if len(messages) < len(due):
        raise Misplaced(
            None, f"the entry has {len(messages)} messages: a CERT, {lists} LISTs and a SET are due"
        )
    rest = messages[len(due) :]
    return (
        messages[0],
        messages[1 : len(due) - 1],
        messages[len(due) - 1] if len(due) > 1 else None,
        rest,
    )


def _certified(auditor: Auditor, done: int, previous: bytes, cert: PlacedMessage) -> Certificate:
    body = cert.message.body
    rules = auditor.rules
    assert isinstance(body, Cert)
    record = body.certificate.record
    later = (
        auditor.partial and record.round > done + 1
    )  # a client that was away, and has not seen those in between
    if body.round != record.round or not (record.round == done + 1 or later):
        raise Refused(f"the certificate is of round {record.round}")
    if record.previous != previous and not later:
        raise Refused("the certificate does not follow from the value of the round before")
    if not rules.certifies(body.certificate, Kind.COMMIT):
        raise Refused(
            f"the certificate does not hold: {rules.roster.quorum} servers must have signed it"
        )
    return body.certificate


def _set(record: Record, set_: PlacedMessage) -> Entries:
    body = set_.message.body
    assert isinstance(body, Part)
    if (body.round, body.what) != (record.round, PartKind.SET) or part_digest(
        PartKind.SET, body.content
    ) != record.set_:
        raise Refused("the set of uploads is not the certified one")
    return decode_entries(body.content)


def _check_list(rules: Rules, number: int, one: PlacedMessage) -> None:
    body = one.message.body
    assert isinstance(body, UploadList)
    if body.round != number or not rules.proper_list(body) or not rules.authentic(one.message):
        raise Refused(f"the list is not one that server {body.server} signed for this round")


def _check_union(rules: Rules, lists: list[PlacedMessage], entries: Entries) -> None:
    if len({author(one.message.body) for one in lists}) != len(lists):
        raise Refused("two lists are of one server")
    if rules.union(one.message for one in lists)[0] != entries:
        raise Refused("the set of uploads is not the union of the lists")


def _charge(auditor: Auditor, one: PlacedMessage) -> Charge:
    """It may be of the next round: servers that were done with this one were in it already."""
    body = one.message.body
    assert isinstance(body, Evidence)
    if not auditor.rules.proves(body):
        raise Refused("the evidence proves nothing")
    party, first, second, round_ = accusation(body)
    return Charge(round_, auditor.name(party), f"{first.name} and {second.name}")
