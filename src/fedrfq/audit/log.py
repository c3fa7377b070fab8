"""Check a round's entry in audit.log, given the public keys and the value of the previous round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedrfq.audit.location import RefusedAt, located
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Evidence,
    Inputs,
    Kind,
    Part,
    PartKind,
    Record,
    UploadList,
    author,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import PlacedMessage, accusation, contradiction, unpack


@dataclass(frozen=True)
class Charge:
    """Whom evidence convicts, in which round, and of having signed what."""

    round: int
    who: str
    what: str


@dataclass(frozen=True)
class AuditedRound:
    """A round that holds."""

    round: int
    certificate: Certificate
    # The set; None where the party that wrote the log has not seen it.
    inputs: Inputs | None
    traced: bool  # whether the lists are there, and the set follows from them
    charges: tuple[Charge, ...]
    offset: int = 0  # of the entry in its file
    recomputed: bool = False
    # Clients that counted for less and why, by name; none as long as the outcome is not known.
    reduced: Mapping[str, str] = field(default_factory=dict)
    # Clients that took their statistics back, "all" or "some"; known where the uploads are.
    taken_back: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Auditor:
    """What an audit goes by.

    A `partial` log is that of one party on a network, and has only what that party has seen.
    """

    federation: Federation
    rules: Rules
    partial: bool

    def name(self, party: int) -> str:
        """Return a party's name."""
        if self.federation.network is not None:
            return self.federation.members[party].name
        if party >= 0:
            return f"server {party}"
        return f"client {~party}"


class _Entry(NamedTuple):
    """The messages of an entry. A partial log may lack the lists, or the set and the lists."""

    cert: PlacedMessage
    lists: list[PlacedMessage]
    set_: PlacedMessage | None
    evidence: list[PlacedMessage]


def audited(auditor: Auditor, done: int, previous: bytes, payload: bytes) -> AuditedRound:
    """Return the round in a payload; raise RefusedAt where it does not hold.

    `done` is the last round before it in the log, and `previous` the value of that round.
    """
    with located():
        messages = unpack(payload)
    rules = auditor.rules
    entry = _split(auditor, messages)
    with located(entry.cert):
        certificate = _check_certificate(auditor, done, previous, entry.cert)
    record = certificate.record
    inputs = None
    if entry.set_ is not None:
        with located(entry.set_):
            inputs = _check_set(record, entry.set_)
    for upload_list in entry.lists:
        with located(upload_list):
            _check_list(rules, record.round, upload_list)
    if entry.lists and inputs is not None:
        with located(entry.set_):
            _check_union(rules, entry.lists, inputs)
    charges = []
    for evidence in entry.evidence:
        with located(evidence):
            charges.append(_charge(auditor, evidence))
    return AuditedRound(record.round, certificate, inputs, bool(entry.lists), tuple(charges))


def _split(auditor: Auditor, messages: list[PlacedMessage]) -> _Entry:
    """Check that the messages are of the right kinds and of this run, and tell them apart."""
    rules = auditor.rules
    lists = rules.roster.n - rules.roster.f
    kinds = _expected_kinds(auditor, messages, lists)
    for number, (at, message) in enumerate(messages):
        # After the others there may be any number of EVIDENCEs.
        kind = kinds[number] if number < len(kinds) else Kind.EVIDENCE
        if message.body.kind != kind or not rules.of_run(message):
            raise RefusedAt(at, f"a {kind.name} of this run is expected here")
    if len(messages) < len(kinds):
        raise RefusedAt(
            None,
            f"the entry has {len(messages)} messages: a CERT, {lists} LISTs and a SET are expected",
        )
    set_ = None
    if len(kinds) > 1:
        set_ = messages[len(kinds) - 1]
    return _Entry(messages[0], messages[1 : len(kinds) - 1], set_, messages[len(kinds) :])


def _expected_kinds(auditor: Auditor, messages: list[PlacedMessage], lists: int) -> list[Kind]:
    """Return the kinds of messages that an entry must start with: CERT, LISTs and SET.

    In a partial log the second message tells whether lists follow, the set alone, or neither.
    """
    complete = [Kind.CERT, *[Kind.LIST] * lists, Kind.BODY]
    if not auditor.partial:
        return complete
    second = None
    if len(messages) > 1:
        second = messages[1].message.body.kind
    if second == Kind.LIST:
        return complete
    if second == Kind.BODY:
        return [Kind.CERT, Kind.BODY]
    return [Kind.CERT]


def _check_certificate(
    auditor: Auditor, done: int, previous: bytes, cert: PlacedMessage
) -> Certificate:
    body = cert.message.body
    rules = auditor.rules
    assert isinstance(body, Cert)
    record = body.certificate.record
    # A client that was away has not seen the rounds in between.
    is_after_gap = auditor.partial and record.round > done + 1
    if body.round != record.round or not (record.round == done + 1 or is_after_gap):
        raise Refused(f"the certificate is of round {record.round}, not of round {done + 1}")
    if record.previous != previous and not is_after_gap:
        raise Refused("the certificate does not follow from the value of the round before")
    if not rules.certifies(body.certificate, Kind.COMMIT):
        raise Refused(
            f"the certificate does not hold: {rules.roster.quorum} servers must have signed it"
        )
    return body.certificate


def _check_set(record: Record, set_: PlacedMessage) -> Inputs:
    body = set_.message.body
    assert isinstance(body, Part)
    is_set = (body.round, body.what) == (record.round, PartKind.SET)
    if not is_set or part_digest(PartKind.SET, body.content) != record.set_:
        raise Refused("the set of uploads is not the certified one")
    return Inputs.decode(body.content)


def _check_list(rules: Rules, round_: int, upload_list: PlacedMessage) -> None:
    message = upload_list.message
    body = message.body
    assert isinstance(body, UploadList)
    if body.round != round_ or not rules.proper_list(body) or not rules.authentic(message):
        raise Refused(f"the list is not one that server {body.server} signed for this round")


def _check_union(rules: Rules, lists: list[PlacedMessage], inputs: Inputs) -> None:
    # One server's list, repeated, could hide that others were left out.
    if len({author(placed.message.body) for placed in lists}) != len(lists):
        raise Refused("two lists are of one server")
    counted, _ = rules.union(placed.message for placed in lists)
    if counted != inputs:
        raise Refused("the set of uploads is not the union of the lists")


def _charge(auditor: Auditor, evidence: PlacedMessage) -> Charge:
    """Return what evidence proves.

    It may be of the next round, in which servers that were done with this one were already.
    """
    body = evidence.message.body
    assert isinstance(body, Evidence)
    if not auditor.rules.proves(body):
        raise Refused("the evidence proves nothing")
    party, first, second, round_ = accusation(body)
    return Charge(round_, auditor.name(party), contradiction(first, second))
