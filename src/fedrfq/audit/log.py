"""What must hold of a round's entry in audit.log, given the public keys and the value of the round before."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.audit.place import Misplaced, at
from fedrfq.committee.journal import Placed, unpacked
from fedrfq.consensus.messages import (
    Body,
    Cert,
    Certificate,
    Evidence,
    Kind,
    List,
    Record,
    What,
    author,
    decode_entries,
    part_digest,
)
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.consensus.wire import Refused


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
    entries: Entries  # the set of uploads
    charges: tuple[Charge, ...]


def audited(rules: Rules, number: int, previous: bytes, payload: bytes) -> Audited:
    """The round in a payload; Misplaced where it does not hold."""
    with at():
        messages = unpacked(payload)
    cert, lists, set_, evidence = _shape(rules, messages)
    with at(cert):
        certificate = _certified(rules, number, previous, cert)
    with at(set_):
        entries = _set(certificate.record, set_)
    for one in lists:
        with at(one):
            _check_list(rules, number, one)
    with at(set_):
        _check_union(rules, lists, entries)
    charges = []
    for one in evidence:
        with at(one):
            charges.append(_charge(rules, one))
    return Audited(number, certificate, entries, tuple(charges))


def _shape(rules: Rules, messages: list[Placed]) -> tuple[Placed, list[Placed], Placed, list[Placed]]:
    """A CERT, n − f LISTs, a SET, and any number of EVIDENCEs, all of this run."""
    lists = rules.roster.n - rules.roster.f
    for number, (place, message) in enumerate(messages):
        kind = Kind.CERT if number == 0 else Kind.LIST if number <= lists else Kind.EVIDENCE
        kind = Kind.BODY if number == lists + 1 else kind
        if message.body.kind != kind or message.run != rules.run:
            raise Misplaced(place, f"a {kind.name} of this run is due here")
    if len(messages) < lists + 2:
        raise Misplaced(None, f"the entry has {len(messages)} messages: a CERT, {lists} LISTs and a SET are due")
    return messages[0], messages[1 : lists + 1], messages[lists + 1], messages[lists + 2 :]


def _certified(rules: Rules, number: int, previous: bytes, cert: Placed) -> Certificate:
    body = cert.message.body
    assert isinstance(body, Cert)
    record = body.certificate.record
    if not body.round == record.round == number:
        raise Refused(f"the certificate is of round {record.round}")
    if record.previous != previous:
        raise Refused("the certificate does not follow from the value of the round before")
    if not rules.certifies(body.certificate, Kind.COMMIT):
        raise Refused(f"the certificate does not hold: {rules.roster.quorum} servers must have signed it")
    return body.certificate


def _set(record: Record, set_: Placed) -> Entries:
    body = set_.message.body
    assert isinstance(body, Body)
    if (body.round, body.what) != (record.round, What.SET) or part_digest(What.SET, body.content) != record.set_:
        raise Refused("the set of uploads is not the certified one")
    return decode_entries(body.content)


def _check_list(rules: Rules, number: int, one: Placed) -> None:
    body = one.message.body
    assert isinstance(body, List)
    if body.round != number or not rules.proper_list(body) or not rules.authentic(one.message):
        raise Refused(f"the list is not one that server {body.server} signed for this round")


def _check_union(rules: Rules, lists: list[Placed], entries: Entries) -> None:
    if len({author(one.message.body) for one in lists}) != len(lists):
        raise Refused("two lists are of one server")
    if rules.union(one.message for one in lists)[0] != entries:
        raise Refused("the set of uploads is not the union of the lists")


def _charge(rules: Rules, one: Placed) -> Charge:
    """It may be of the next round: servers that were done with this one were in it already."""
    body = one.message.body
    assert isinstance(body, Evidence)
    if not rules.proves(body):
        raise Refused("the evidence proves nothing")
    first, second, party = body.first.body, body.second.body, author(body.first.body)
    assert party is not None
    who = f"server {party}" if party >= 0 else f"client {~party}"
    return Charge(body.round, who, f"{first.kind.name} and {second.kind.name}")
