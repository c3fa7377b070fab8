"""What holds by itself: each rule with messages made by hand, and each of its conditions broken alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
from strategies import Seals, seal

from fedrfq.consensus.machine import Outcome
from fedrfq.consensus.messages import (
    Any,
    Body,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Fetch,
    Kind,
    List,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    Record,
    Upload,
    ViewChange,
    What,
    author,
    decode,
    decode_entries,
    part_digest,
    write_entries,
)
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules

SIZES = (4, 5, 6, 7)
ROUND = 6  # led by server ROUND % n in view 0


def digest(text: str) -> bytes:
    return text.encode().ljust(32, b".")


def committee(n: int = 4, clients: int = 3, minimum: int = 1, purpose: bytes = b"") -> Rules:
    parties = [tuple(b"%s %d" % (who, i) for i in range(k)) for who, k in ((b"server", n), (b"client", clients))]
    return Rules(Roster(Seals(), *parties, purpose=purpose, minimum=minimum))


def sign(rules: Rules, body: Any, by: int | None = None) -> Message:
    """By its author, or by somebody else in its name."""
    party = author(body) if by is None else by
    assert party is not None
    return rules.signed(body, lambda raw: seal(rules.roster.key(party) or b"a stranger's", raw))


def record(name: str = "a", round_: int = ROUND) -> Record:
    return Record(round_, digest("before"), digest(name), digest("g"), digest("v"), digest("s"))


def vote(phase: Kind, view: int, what: Record, server: int, run: bytes) -> Prepare | Commit:
    return (Prepare if phase == Kind.PREPARE else Commit)(what.round, view, what.value(run), server)


def certified(rules: Rules, phase: Kind, servers: Iterable[int], view: int = 0, what: Record | None = None) -> Certificate:
    """With the signatures of these servers, whether enough or not."""
    what = record() if what is None else what
    votes = [sign(rules, vote(phase, view, what, server, rules.run)) for server in servers]
    return Certificate(phase, view, what, tuple((author(v.body) or 0, v.signature) for v in votes))


def last(rules: Rules) -> Certificate:
    """Of the round before."""
    return certified(rules, Kind.COMMIT, range(rules.roster.quorum), what=record("before", ROUND - 1))


# Signatures


def test_authentic_is_what_its_author_signed_for_this_run() -> None:
    rules, other = committee(), committee(purpose=b"another")
    for body in (Upload(ROUND, 2, b""), Prepare(ROUND, 0, digest("a"), 3), List(ROUND, 0, ())):
        message = sign(rules, body)
        assert rules.authentic(message)
        assert rules.authentic(decode(message.wire))
        assert not rules.authentic(sign(rules, body, by=1))
        assert not rules.authentic(sign(other, body))
        assert not rules.authentic(Message(rules.run, body, message.raw, bytes(64)))
        assert not rules.authentic(Message(rules.run, body, message.raw + b"x", message.signature))


def test_a_message_of_another_run_is_not_authentic_whatever_it_was_signed_with() -> None:
    rules, other = committee(), committee(purpose=b"another")
    message = sign(other, Prepare(ROUND, 0, digest("a"), 3))
    assert rules.roster.servers == other.roster.servers
    assert other.authentic(message)
    assert not rules.authentic(message)


@pytest.mark.parametrize("body", [Upload(ROUND, 7, b""), Prepare(ROUND, 0, digest("a"), 4), List(ROUND, 65535, ())])
def test_a_stranger_is_never_authentic(body: Any) -> None:
    assert not committee().authentic(sign(committee(), body))


def test_what_nobody_signs_is_not_authentic() -> None:
    rules = committee()
    assert not rules.authentic(rules.unsigned(Fetch(ROUND, What.CERT)))
    assert rules.unsigned(Fetch(ROUND, What.CERT)).wire == rules.unsigned(Fetch(ROUND, What.CERT)).raw


# Certificates


@pytest.mark.parametrize("phase", [Kind.PREPARE, Kind.COMMIT])
@pytest.mark.parametrize("n", SIZES)
def test_a_quorum_certifies(n: int, phase: Kind) -> None:
    rules = committee(n)
    q, other = rules.roster.quorum, Kind.PREPARE + Kind.COMMIT - phase
    for servers in (range(q), range(n - q, n), range(n)):
        assert rules.certifies(certified(rules, phase, servers), phase)
        assert not rules.certifies(certified(rules, phase, servers), Kind(other))


@pytest.mark.parametrize("n", SIZES)
def test_one_signature_short_is_no_certificate(n: int) -> None:
    rules = committee(n)
    assert not rules.certifies(certified(rules, Kind.COMMIT, range(rules.roster.quorum - 1)), Kind.COMMIT)


@pytest.mark.parametrize("n", [5, 6])
def test_twice_the_faults_and_one_is_no_quorum_here(n: int) -> None:
    rules = committee(n)
    assert 2 * rules.roster.f + 1 < rules.roster.quorum
    assert not rules.certifies(certified(rules, Kind.COMMIT, range(2 * rules.roster.f + 1)), Kind.COMMIT)


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
            replace(good, signatures=(*good.signatures[:at], bad, *good.signatures[at + 1 :])), good.phase
        )


def test_votes_certify_one_phase_view_round_value_and_run() -> None:
    rules = committee()
    good = certified(rules, Kind.PREPARE, range(3), view=1)
    assert rules.certifies(good, Kind.PREPARE)
    assert not rules.certifies(replace(good, view=0), Kind.PREPARE)
    assert not rules.certifies(replace(good, phase=Kind.COMMIT), Kind.COMMIT)
    assert not rules.certifies(replace(good, phase=Kind.COMMIT), Kind.PREPARE), "it says commits, and shows prepares"
    assert not rules.certifies(replace(good, record=record("b")), Kind.PREPARE)
    assert not rules.certifies(replace(good, record=record("a", ROUND + 1)), Kind.PREPARE)
    assert not committee(purpose=b"another").certifies(good, Kind.PREPARE)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("phase", [Kind.PREPARE, Kind.COMMIT])
def test_votes_are_made_into_a_certificate(n: int, phase: Kind) -> None:
    rules = committee(n)
    votes = [sign(rules, vote(phase, 2, record(), server, rules.run)) for server in reversed(range(n))]
    made = rules.certificate(votes, record())
    assert (made.phase, made.view, made.record) == (phase, 2, record())
    assert [server for server, _ in made.signatures] == [*range(rules.roster.quorum)]
    assert rules.certifies(made, phase)
    assert decode(rules.unsigned(Cert(ROUND, made)).wire).body == Cert(ROUND, made)


# Lists


def entry(client: int, name: str = "x") -> tuple[int, bytes]:
    return client, digest(name)


LISTS = {
    "one client": (True, [entry(0)]),
    "all clients": (True, [entry(0), entry(1), entry(2)]),
    "one that sent two uploads": (True, [entry(1, "x"), entry(1, "y")]),
    "two that sent two": (True, [entry(0, "x"), entry(0, "y"), entry(2, "x"), entry(2, "y")]),
    "nobody": (False, []),
    "with what two servers move": (True, [entry(0), entry(3), entry(6)]),
    "motions alone": (False, [entry(3), entry(4)]),
    "a stranger": (False, [entry(0), entry(7)]),
    "another stranger": (False, [entry(0), entry(2**32 - 1)]),
    "three of one": (False, [entry(1, "x"), entry(1, "y"), entry(1, "z")]),
    "three of the last": (False, [entry(0), entry(1, "x"), entry(1, "y"), entry(1, "z")]),
    "three of the last of three": (False, [entry(0), entry(1), entry(2, "x"), entry(2, "y"), entry(2, "z")]),
    "clients out of order": (False, [entry(1), entry(0)]),
    "digests out of order": (False, [entry(1, "y"), entry(1, "x")]),
    "an entry twice": (False, [entry(1), entry(1)]),
}


@pytest.mark.parametrize("name", LISTS)
def test_proper_lists(name: str) -> None:
    proper, entries = LISTS[name]
    assert committee().proper_list(List(ROUND, 0, tuple(entries))) == proper


def test_a_list_has_as_many_clients_as_a_round_needs() -> None:
    rules = committee(minimum=2)
    assert not rules.proper_list(List(ROUND, 0, (entry(0, "x"), entry(0, "y"))))
    assert rules.proper_list(List(ROUND, 0, (entry(0), entry(2))))


def union(*lists: list[tuple[int, bytes]]) -> tuple[Any, Any]:
    rules = committee()
    return rules.union(sign(rules, List(ROUND, server, tuple(entries))) for server, entries in enumerate(lists))


def test_the_union_of_lists() -> None:
    assert union([entry(2)], [entry(0), entry(1)], [entry(0)]) == ((entry(0), entry(1), entry(2)), ())
    assert union() == ((), ())


def test_a_client_with_two_uploads_among_the_lists_does_not_count() -> None:
    for lists in ([entry(1, "y"), entry(2)], [entry(1, "x")]), ([entry(2)], [entry(1, "x"), entry(1, "y")]):
        assert union(*lists) == ((entry(2),), (entry(1, "x"), entry(1, "y")))
    assert union([entry(0, "z")], [entry(0, "x")], [entry(0, "y")])[1] == (entry(0, "x"), entry(0, "y"), entry(0, "z"))
    assert union([entry(1, "b")], [entry(1, "a")], [entry(0, "b")], [entry(0, "a")]) == (
        (),
        (entry(0, "a"), entry(0, "b"), entry(1, "a"), entry(1, "b")),
    )


def test_a_record_names_all_parts() -> None:
    entries, outcome = (entry(0), entry(2)), Outcome(b"globals", b"verdicts", b"state")
    made = committee().record(ROUND, digest("p"), entries, outcome)
    assert (made.round, made.previous) == (ROUND, digest("p"))
    assert made.set_ == part_digest(What.SET, write_entries(entries))
    assert decode_entries(write_entries(entries)) == entries
    assert made.globals_ == part_digest(What.GLOBALS, b"globals")
    assert made.verdicts == part_digest(What.VERDICTS, b"verdicts")
    assert made.state == part_digest(What.STATE, b"state")


# View changes


def change(rules: Rules, server: int = 0, view: int = 2, prepared: Certificate | None = None, **changed: Any) -> ViewChange:
    return replace(ViewChange(ROUND, view, server, prepared, last(rules)), **changed)


@pytest.mark.parametrize("n", SIZES)
def test_proper_view_changes(n: int) -> None:
    rules = committee(n)
    prepared = [certified(rules, Kind.PREPARE, range(rules.roster.quorum), view) for view in (0, 1)]
    assert all(rules.proper_change(change(rules, prepared=p)) for p in (None, *prepared))
    assert rules.proper_change(ViewChange(1, 1, 0, None, None))


@pytest.mark.parametrize("n", SIZES)
def test_a_view_change_with_something_that_was_not_prepared(n: int) -> None:
    rules = committee(n)
    q = rules.roster.quorum
    bad = {
        "one short": certified(rules, Kind.PREPARE, range(q - 1)),
        "duplicates": certified(rules, Kind.PREPARE, [*range(q - 1), 0]),
        "committed": certified(rules, Kind.COMMIT, range(q)),
        "in the same view": certified(rules, Kind.PREPARE, range(q), view=2),
        "in a later view": certified(rules, Kind.PREPARE, range(q), view=3),
        "in the last round": certified(rules, Kind.PREPARE, range(q), what=record("a", ROUND - 1)),
        "in the next round": certified(rules, Kind.PREPARE, range(q), what=record("a", ROUND + 1)),
        "another value": replace(certified(rules, Kind.PREPARE, range(q)), record=record("b")),
    }
    assert not [name for name, prepared in bad.items() if rules.proper_change(change(rules, prepared=prepared))]


def test_a_view_change_without_the_certificate_of_the_last_round() -> None:
    rules = committee()
    bad = {
        "none": None,
        "one short": certified(rules, Kind.COMMIT, range(2), what=record("before", ROUND - 1)),
        "prepared": certified(rules, Kind.PREPARE, range(3), what=record("before", ROUND - 1)),
        "of this round": certified(rules, Kind.COMMIT, range(3)),
        "of an older round": certified(rules, Kind.COMMIT, range(3), what=record("before", ROUND - 2)),
    }
    assert not [name for name, found in bad.items() if rules.proper_change(change(rules, last=found))]
    first = certified(rules, Kind.COMMIT, range(3), what=record("before", 0))
    assert not rules.proper_change(ViewChange(1, 1, 0, None, first)), "there is nothing before the first round"
    assert not rules.proper_change(ViewChange(0, 1, 0, None, None)), "and no round 0"


def test_nobody_changes_to_view_0() -> None:
    rules = committee()
    assert not rules.proper_change(change(rules, view=0))
    assert not rules.proper_change(ViewChange(1, 0, 0, None, None))
    assert rules.proper_change(change(rules, view=1))


def test_the_highest_prepared_view_binds() -> None:
    rules = committee()
    low = certified(rules, Kind.PREPARE, range(3), 0, record("a"))
    high = certified(rules, Kind.PREPARE, range(3), 1, record("b"))
    changes = [sign(rules, change(rules, server, prepared=p)) for server, p in enumerate((low, None, high, None))]
    assert rules.bound(changes) == rules.bound(reversed(changes)) == high
    assert rules.bound(changes[:2]) == low
    assert rules.bound(changes[1:2]) is None
    assert rules.bound([]) is None
    assert rules.bound([*changes, sign(rules, Prepare(ROUND, 3, digest("a"), 0))]) == high


# Proposals


def lists(rules: Rules, number: int | None = None, round_: int = ROUND) -> tuple[Message, ...]:
    number = rules.roster.n - rules.roster.f if number is None else number
    return tuple(sign(rules, List(round_, server, (entry(0),))) for server in range(number))


def changes(rules: Rules, view: int, prepared: Certificate | None = None) -> tuple[Message, ...]:
    """Of the last quorum of servers; the first of them has something prepared."""
    servers = range(rules.roster.n - rules.roster.quorum, rules.roster.n)
    return tuple(sign(rules, change(rules, s, view, prepared if s == servers[0] else None)) for s in servers)


def proposal(rules: Rules, view: int = 0, **changed: Any) -> PrePrepare:
    """A free choice of the leader, but for what is changed."""
    leader, justified = rules.roster.leader(ROUND, view), changes(rules, view) if view else ()
    return replace(PrePrepare(ROUND, view, leader, record(), lists(rules), justified), **changed)


@pytest.mark.parametrize("n", SIZES)
def test_proper_proposals(n: int) -> None:
    rules = committee(n)
    prepared = certified(rules, Kind.PREPARE, range(rules.roster.quorum), 1, record("b"))
    assert rules.proper_proposal(proposal(rules))
    assert rules.proper_proposal(proposal(rules, 2))
    assert rules.proper_proposal(proposal(rules, 2, record=record("b"), lists=(), changes=changes(rules, 2, prepared)))


@pytest.mark.parametrize("view", [0, 2])
@pytest.mark.parametrize("n", SIZES)
def test_only_the_leader_proposes_and_only_for_its_round(n: int, view: int) -> None:
    rules = committee(n)
    leader = rules.roster.leader(ROUND, view)
    assert not any(rules.proper_proposal(proposal(rules, view, server=s)) for s in range(n) if s != leader)
    assert not rules.proper_proposal(proposal(rules, view, record=record("a", ROUND - 1)))


@pytest.mark.parametrize("view", [0, 2])
@pytest.mark.parametrize("n", SIZES)
def test_a_free_choice_without_its_lists(n: int, view: int) -> None:
    rules = committee(n)
    good, entries = lists(rules), (entry(0),)
    bad = {
        "none": (),
        "one short": good[:-1],
        "one too many": lists(rules, len(good) + 1),
        "a server twice": (*good[:-1], good[0]),
        "a server twice on top": (*good, good[0]),
        "a server twice, with two lists": (*good[:-1], sign(rules, List(ROUND, 0, (entry(1),)))),
        "of the last round": (*good[:-1], sign(rules, List(ROUND - 1, n - 1, entries))),
        "of the next round": (*good[:-1], sign(rules, List(ROUND + 1, n - 1, entries))),
        "forged": (*good[:-1], sign(rules, List(ROUND, n - 1, entries), by=0)),
        "of a stranger": (*good[:-1], sign(rules, List(ROUND, n, entries))),
        "of another run": (*good[:-1], sign(committee(n, purpose=b"another"), List(ROUND, n - 1, entries))),
        "an empty one": (*good[:-1], sign(rules, List(ROUND, n - 1, ()))),
        "a vote": (*good[:-1], sign(rules, Prepare(ROUND, 0, digest("a"), n - 1))),
        "an upload": (*good[:-1], sign(rules, Upload(ROUND, 0, b""))),
        "a vote on top": (*good, sign(rules, Prepare(ROUND, 0, digest("a"), n - 1))),
    }
    assert not [name for name, found in bad.items() if rules.proper_proposal(proposal(rules, view, lists=found))]


@pytest.mark.parametrize("n", SIZES)
def test_a_new_view_without_its_view_changes(n: int) -> None:
    rules = committee(n)
    good, body = changes(rules, 2), change(rules, n - 1)
    forged = certified(rules, Kind.PREPARE, range(rules.roster.quorum - 1))
    bad = {
        "none": (),
        "one short": good[1:],
        "a server twice": (*good[1:], good[1]),
        "for another view": changes(rules, 1),
        "one for another view": (*good[:-1], sign(rules, replace(body, view=3))),
        "one for another round": (*good[:-1], sign(rules, ViewChange(1, 2, n - 1, None, None))),
        "forged": (*good[:-1], sign(rules, body, by=0)),
        "of a stranger": (*good[:-1], sign(rules, replace(body, server=n))),
        "of another run": (*good[:-1], sign(committee(n, purpose=b"another"), body)),
        "an improper one": (*good[:-1], sign(rules, replace(body, last=None))),
        "an improper one on top": (*good, sign(rules, replace(body, prepared=forged))),
        "a vote": (*good[:-1], sign(rules, Prepare(ROUND, 2, digest("a"), n - 1))),
        "a vote on top": (*good, sign(rules, Prepare(ROUND, 2, digest("a"), n - 1))),
        "an upload": (*good[:-1], sign(rules, Upload(ROUND, 0, b""))),
    }
    assert not [name for name, found in bad.items() if rules.proper_proposal(proposal(rules, 2, changes=found))]


@pytest.mark.parametrize("n", SIZES)
def test_view_0_needs_no_view_changes_and_has_none(n: int) -> None:
    rules = committee(n)
    assert not rules.proper_proposal(proposal(rules, changes=changes(rules, 2)))
    assert not rules.proper_proposal(proposal(rules, changes=(sign(rules, change(rules, view=0)),)))


@pytest.mark.parametrize("n", SIZES)
def test_a_new_view_carries_on_with_what_is_prepared(n: int) -> None:
    rules = committee(n)
    prepared = certified(rules, Kind.PREPARE, range(rules.roster.quorum), 1, record("b"))
    bound = proposal(rules, 2, record=record("b"), lists=(), changes=changes(rules, 2, prepared))
    assert rules.proper_proposal(bound)
    assert not rules.proper_proposal(replace(bound, record=record("a"))), "another value"
    assert not rules.proper_proposal(replace(bound, record=record("a"), lists=lists(rules))), "a free choice"
    assert not rules.proper_proposal(replace(bound, lists=lists(rules))), "lists that nobody needs"


# Evidence


def said_by_one(name: str) -> dict[Kind, Any]:
    """One body of each kind, of round 6 and view 1, by server 1 or client 1: two names, two different things said."""
    rules = committee()
    what, signed = record(name), sign(rules, List(ROUND, 1, (entry(1, name),)))
    return {
        Kind.UPLOAD: Upload(ROUND, 1, name.encode()),
        Kind.RECEIPT: Receipt(ROUND, 1, 1, digest(name)),
        Kind.LIST: List(ROUND, 1, (entry(1, name),)),
        Kind.PREPREPARE: PrePrepare(ROUND, 1, 1, what, (), ()),
        Kind.PREPARE: Prepare(ROUND, 1, digest(name), 1),
        Kind.COMMIT: Commit(ROUND, 1, digest(name), 1),
        Kind.VIEWCHANGE: ViewChange(ROUND, 1, 1, Certificate(Kind.PREPARE, 0, what, ()), None),
        Kind.CERT: Cert(ROUND, Certificate(Kind.COMMIT, 0, what, ())),
        Kind.EVIDENCE: Evidence(ROUND, signed, signed),
        Kind.FETCH: Fetch(ROUND, What.SET, digest(name)),
        Kind.BODY: Body(ROUND, What.SET, name.encode()),
    }


PAIRS = [*product(Kind, Kind)]
ONE, OTHER = said_by_one("x"), said_by_one("y")
CONFLICTS = {(k, k) for k in (Kind.UPLOAD, Kind.LIST, Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)} | {
    (Kind.RECEIPT, Kind.LIST)
}


def proven(rules: Rules, a: Any, b: Any) -> bool:
    first, second = (sign(rules, body) if author(body) is not None else rules.unsigned(body) for body in (a, b))
    return rules.proves(Evidence(a.round, first, second))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_what_conflicts_with_what(first: Kind, second: Kind) -> None:
    rules = committee()
    expected = (first, second) in CONFLICTS
    assert rules.conflict(ONE[first], OTHER[second]) == expected
    assert proven(rules, ONE[first], OTHER[second]) == expected


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_saying_one_thing_is_no_evidence(first: Kind, second: Kind) -> None:
    """The same twice, and a receipt with the list that keeps its promise."""
    assert not committee().conflict(ONE[first], ONE[second])
    assert not proven(committee(), ONE[first], ONE[second])


HONEST = {
    "uploads of two rounds": (Upload(5, 1, b"x"), Upload(6, 1, b"y")),
    "uploads of two clients": (Upload(6, 1, b"x"), Upload(6, 2, b"y")),
    "a client and the server of its number": (Upload(6, 1, b"x"), List(6, 1, (entry(1),))),
    "receipts of both uploads of a client": (Receipt(6, 1, 1, digest("x")), Receipt(6, 1, 1, digest("y"))),
    "receipts of two clients": (Receipt(6, 1, 1, digest("x")), Receipt(6, 1, 2, digest("x"))),
    "a receipt kept among others": (Receipt(6, 1, 1, digest("x")), List(6, 1, (entry(0), entry(1, "x"), entry(1, "y")))),
    "a receipt of another round": (Receipt(5, 1, 1, digest("x")), List(6, 1, (entry(0),))),
    "a receipt of another server": (Receipt(6, 2, 1, digest("x")), List(6, 1, (entry(0),))),
    "lists of two rounds": (List(5, 1, (entry(0),)), List(6, 1, (entry(1),))),
    "lists of two servers": (List(6, 2, (entry(0),)), List(6, 1, (entry(1),))),
    "votes in two views": (Prepare(6, 0, digest("x"), 1), Prepare(6, 1, digest("y"), 1)),
    "votes in two rounds": (Commit(5, 0, digest("x"), 1), Commit(6, 0, digest("y"), 1)),
    "votes of two servers": (Commit(6, 0, digest("x"), 1), Commit(6, 0, digest("y"), 2)),
    "votes of two phases": (Prepare(6, 0, digest("x"), 1), Commit(6, 0, digest("x"), 1)),
    "proposals in two views": (PrePrepare(6, 0, 1, record("x"), (), ()), PrePrepare(6, 4, 1, record("y"), (), ())),
    "view changes to two views": (ViewChange(1, 1, 1, None, None), ViewChange(1, 2, 1, None, None)),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_the_honest_say_is_no_evidence(name: str) -> None:
    a, b = HONEST[name]
    for first, second in ((a, b), (b, a), (a, a), (b, b)):
        assert not committee().conflict(first, second)
        assert not proven(committee(), first, second)


def test_a_receipt_is_broken_by_a_list_without_its_entry() -> None:
    rules, receipt = committee(), Receipt(ROUND, 1, 1, digest("x"))
    for entries in ((), (entry(1, "y"),), (entry(0, "x"),), (entry(0, "x"), entry(1, "y"), entry(2, "x"))):
        assert proven(rules, receipt, List(ROUND, 1, entries))


def test_evidence_holds_only_with_both_signatures_and_its_round() -> None:
    rules = committee()
    a, b = (Prepare(ROUND, 0, digest(name), 1) for name in "ab")
    first, second = sign(rules, a), sign(rules, b)
    assert rules.proves(Evidence(ROUND, first, second))
    assert rules.proves(Evidence(ROUND, second, first))
    assert not any(rules.proves(Evidence(round_, first, second)) for round_ in (ROUND - 1, ROUND + 1))
    assert not rules.proves(Evidence(ROUND, first, sign(rules, b, by=2)))
    assert not rules.proves(Evidence(ROUND, sign(rules, a, by=2), second))
    assert not rules.proves(Evidence(ROUND, first, sign(committee(purpose=b"another"), b)))


def test_a_second_signature_of_one_thing_is_no_evidence() -> None:
    rules, body = committee(), Prepare(ROUND, 0, digest("a"), 1)
    again = Message(rules.run, body, sign(rules, body).raw, seal(b"a nonce", b""))
    assert not rules.proves(Evidence(ROUND, sign(rules, body), again))
