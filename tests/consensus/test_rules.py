"""Signatures, certificates and lists made by hand, and each of their conditions broken alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    ChangeProposal,
    Entries,
    Fetch,
    Inputs,
    Kind,
    Message,
    PartKind,
    Prepare,
    Upload,
    UploadList,
    decode,
    part_digest,
)
from support.handmade import ROUND, SIZES, certified, committee, digest, entry, record, sign, vote
from support.strategies import seal

# Signatures


def test_authentic_is_what_its_author_signed_for_this_run() -> None:
    rules = committee()
    other = committee(purpose=b"another")
    for body in (
        Upload(ROUND, 2, b""),
        Prepare(ROUND, 0, digest("a"), 3),
        UploadList(ROUND, 0, ()),
    ):
        message = sign(rules, body)
        assert rules.authentic(message)
        assert rules.authentic(decode(message.wire))
        assert not rules.authentic(sign(rules, body, by=1))
        assert not rules.authentic(sign(other, body))
        assert not rules.authentic(Message(rules.run, body, message.raw, bytes(64)))
        assert not rules.authentic(Message(rules.run, body, message.raw + b"x", message.signature))


def test_a_message_of_another_run_is_not_authentic_whatever_it_was_signed_with() -> None:
    rules = committee()
    other = committee(purpose=b"another")
    message = sign(other, Prepare(ROUND, 0, digest("a"), 3))
    assert rules.roster.servers == other.roster.servers
    assert other.authentic(message)
    assert not rules.authentic(message)


@pytest.mark.parametrize(
    "body", [Upload(ROUND, 7, b""), Prepare(ROUND, 0, digest("a"), 4), UploadList(ROUND, 65535, ())]
)
def test_a_stranger_is_never_authentic(body: AnyMessage) -> None:
    assert not committee().authentic(sign(committee(), body))


def test_what_nobody_signs_is_not_authentic() -> None:
    rules = committee()
    assert not rules.authentic(rules.unsigned(Fetch(ROUND, PartKind.CERT)))
    assert (
        rules.unsigned(Fetch(ROUND, PartKind.CERT)).wire
        == rules.unsigned(Fetch(ROUND, PartKind.CERT)).raw
    )


# Certificates


@pytest.mark.parametrize("phase", [Kind.PREPARE, Kind.COMMIT])
@pytest.mark.parametrize("n", SIZES)
def test_a_quorum_certifies(n: int, phase: Kind) -> None:
    rules = committee(n)
    q = rules.roster.quorum
    other = Kind.PREPARE + Kind.COMMIT - phase
    for servers in (range(q), range(n - q, n), range(n)):
        assert rules.certifies(certified(rules, phase, servers), phase)
        assert not rules.certifies(certified(rules, phase, servers), Kind(other))


@pytest.mark.parametrize("n", SIZES)
def test_one_signature_short_is_no_certificate(n: int) -> None:
    rules = committee(n)
    assert not rules.certifies(
        certified(rules, Kind.COMMIT, range(rules.roster.quorum - 1)), Kind.COMMIT
    )


@pytest.mark.parametrize("n", [5, 6])
def test_twice_the_faults_and_one_is_no_quorum_here(n: int) -> None:
    rules = committee(n)
    assert 2 * rules.roster.f + 1 < rules.roster.quorum
    assert not rules.certifies(
        certified(rules, Kind.COMMIT, range(2 * rules.roster.f + 1)), Kind.COMMIT
    )


@pytest.mark.parametrize("n", SIZES)
def test_a_server_counts_once_and_a_stranger_never(n: int) -> None:
    rules = committee(n)
    short = [*range(rules.roster.quorum - 1)]
    assert not rules.certifies(certified(rules, Kind.COMMIT, [*short, 0]), Kind.COMMIT)
    assert not rules.certifies(certified(rules, Kind.COMMIT, [*short, n]), Kind.COMMIT)
    assert rules.enough([*short, n - 1, 0])
    assert not rules.enough([*short, 0])


@pytest.mark.parametrize("n", SIZES)
def test_one_bad_signature_among_enough_spoils_a_certificate(n: int) -> None:
    rules = committee(n)
    good = certified(rules, Kind.PREPARE, range(n))
    for at in range(n):
        bad = (at, seal(b"somebody", b"something"))
        assert not rules.certifies(
            replace(good, signatures=(*good.signatures[:at], bad, *good.signatures[at + 1 :])),
            good.phase,
        )


def test_votes_certify_one_phase_view_round_value_and_run() -> None:
    rules = committee()
    good = certified(rules, Kind.PREPARE, range(3), view=1)
    assert rules.certifies(good, Kind.PREPARE)
    assert not rules.certifies(replace(good, view=0), Kind.PREPARE)
    assert not rules.certifies(replace(good, phase=Kind.COMMIT), Kind.COMMIT)
    assert not rules.certifies(replace(good, phase=Kind.COMMIT), Kind.PREPARE), (
        "it says commits, and shows prepares"
    )
    assert not rules.certifies(replace(good, record=record("b")), Kind.PREPARE)
    assert not rules.certifies(replace(good, record=record("a", ROUND + 1)), Kind.PREPARE)
    assert not committee(purpose=b"another").certifies(good, Kind.PREPARE)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("phase", [Kind.PREPARE, Kind.COMMIT])
def test_votes_are_made_into_a_certificate(n: int, phase: Kind) -> None:
    rules = committee(n)
    votes = [
        sign(rules, vote(phase, 2, record(), server, rules.run)) for server in reversed(range(n))
    ]
    certificate = rules.certificate(votes, record())
    assert (certificate.phase, certificate.view, certificate.record) == (phase, 2, record())
    assert [server for server, _ in certificate.signatures] == [*range(rules.roster.quorum)]
    assert rules.certifies(certificate, phase)
    cert = Cert(ROUND, certificate)
    assert decode(rules.unsigned(cert).wire).body == cert


# Lists


LISTS = {
    "one client": (True, [entry(0)]),
    "all clients": (True, [entry(0), entry(1), entry(2)]),
    "one that sent two uploads": (True, [entry(1, "x"), entry(1, "y")]),
    "two that sent two": (True, [entry(0, "x"), entry(0, "y"), entry(2, "x"), entry(2, "y")]),
    "nobody": (False, []),
    "a stranger": (False, [entry(0), entry(3)]),
    "another stranger": (False, [entry(0), entry(2**32 - 1)]),
    "three of one": (False, [entry(1, "x"), entry(1, "y"), entry(1, "z")]),
    "three of the last": (False, [entry(0), entry(1, "x"), entry(1, "y"), entry(1, "z")]),
    "three of the last of three": (
        False,
        [entry(0), entry(1), entry(2, "x"), entry(2, "y"), entry(2, "z")],
    ),
    "clients out of order": (False, [entry(1), entry(0)]),
    "digests out of order": (False, [entry(1, "y"), entry(1, "x")]),
    "an entry twice": (False, [entry(1), entry(1)]),
}


@pytest.mark.parametrize("name", LISTS)
def test_proper_lists(name: str) -> None:
    proper, entries = LISTS[name]
    assert committee().proper_list(UploadList(ROUND, 0, tuple(entries))) == proper


PROPOSALS = {
    "none": (True, []),
    "of all servers": (True, [entry(server) for server in range(4)]),
    "two of one server": (True, [entry(1, "x"), entry(1, "y")]),
    "three of one server": (False, [entry(1, "x"), entry(1, "y"), entry(1, "z")]),
    "of a stranger": (False, [entry(4)]),
    "out of order": (False, [entry(1), entry(0)]),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_proper_lists_of_proposals(name: str) -> None:
    proper, proposals = PROPOSALS[name]
    rules = committee()
    assert rules.proper_list(UploadList(ROUND, 0, (entry(0),), tuple(proposals))) == proper
    assert not rules.proper_list(UploadList(ROUND, 0, (), tuple(proposals)))


def test_a_list_has_as_many_clients_as_a_round_needs() -> None:
    rules = committee(minimum=2)
    assert not rules.proper_list(UploadList(ROUND, 0, (entry(0, "x"), entry(0, "y"))))
    assert rules.proper_list(UploadList(ROUND, 0, (entry(0), entry(2))))


def union(*lists: list[tuple[int, bytes]]) -> tuple[Entries, Entries]:
    """Return what a union of uploads yields; that of proposals must be the same."""
    rules = committee()
    counted, repeated = rules.union(
        sign(rules, UploadList(ROUND, server, tuple(entries), tuple(entries)))
        for server, entries in enumerate(lists)
    )
    assert counted.uploads == counted.proposals
    assert repeated.uploads == repeated.proposals
    return counted.uploads, repeated.uploads


def test_the_union_of_lists() -> None:
    assert union([entry(2)], [entry(0), entry(1)], [entry(0)]) == (
        (entry(0), entry(1), entry(2)),
        (),
    )
    assert union() == ((), ())


def test_a_client_with_two_uploads_among_the_lists_does_not_count() -> None:
    for lists in (
        ([entry(1, "y"), entry(2)], [entry(1, "x")]),
        ([entry(2)], [entry(1, "x"), entry(1, "y")]),
    ):
        assert union(*lists) == ((entry(2),), (entry(1, "x"), entry(1, "y")))
    assert union([entry(0, "z")], [entry(0, "x")], [entry(0, "y")])[1] == (
        entry(0, "x"),
        entry(0, "y"),
        entry(0, "z"),
    )
    assert union([entry(1, "b")], [entry(1, "a")], [entry(0, "b")], [entry(0, "a")]) == (
        (),
        (entry(0, "a"), entry(0, "b"), entry(1, "a"), entry(1, "b")),
    )


@pytest.mark.parametrize("n", SIZES)
def test_a_quorum_of_servers_makes_a_successor(n: int) -> None:
    rules = committee(n)

    def proposals(text: bytes, servers: Iterable[int]) -> list[ChangeProposal]:
        return [ChangeProposal(ROUND, server, text) for server in servers]

    quorum = rules.roster.quorum
    assert rules.successor(proposals(b"a", range(quorum))) == b"a"
    assert rules.successor(proposals(b"a", range(quorum - 1))) == b""
    rest = proposals(b"b", range(quorum - 1, n))
    assert rules.successor(proposals(b"a", range(quorum - 1)) + rest) == b""
    # One server counts once, however often it proposes.
    assert rules.successor(proposals(b"a", [0] * quorum)) == b""
    assert rules.successor([]) == b""


def test_a_record_names_all_parts() -> None:
    inputs = Inputs((entry(0), entry(2)), (entry(1),))
    outcome = Outcome(b"globals", b"verdicts", b"state", b"public", b"successor")
    made = committee().record(ROUND, digest("p"), inputs, outcome)
    assert (made.round, made.previous) == (ROUND, digest("p"))
    assert made.set_ == part_digest(PartKind.SET, inputs.write())
    assert made.public == part_digest(PartKind.PUBLIC, b"public")
    assert made.successor == part_digest(PartKind.SUCCESSOR, b"successor")
    assert made.globals_ == part_digest(PartKind.GLOBALS, b"globals")
    assert made.verdicts == part_digest(PartKind.VERDICTS, b"verdicts")
    assert made.state == part_digest(PartKind.STATE, b"state")
