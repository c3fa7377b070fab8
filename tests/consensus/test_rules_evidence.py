"""What is evidence against its author, and what honest parties may sign."""

from __future__ import annotations

from itertools import product

import pytest

from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    Certificate,
    ChangeProposal,
    Commit,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
    author,
)
from fedrfq.consensus.rules import Rules
from support.handmade import ROUND, committee, digest, entry, record, sign
from support.strategies import seal


def bodies_of_one_author(name: str) -> dict[Kind, AnyMessage]:
    """Return a body of each kind, of round 6 and view 1, by server 1 or client 1.

    Bodies of two names conflict if anything does.
    """
    rules = committee()
    what = record(name)
    signed = sign(rules, UploadList(ROUND, 1, (entry(1, name),)))
    return {
        Kind.UPLOAD: Upload(ROUND, 1, name.encode()),
        Kind.RECEIPT: Receipt(ROUND, 1, 1, digest(name)),
        Kind.LIST: UploadList(ROUND, 1, (entry(1, name),)),
        Kind.PREPREPARE: PrePrepare(ROUND, 1, 1, what, (), ()),
        Kind.PREPARE: Prepare(ROUND, 1, digest(name), 1),
        Kind.COMMIT: Commit(ROUND, 1, digest(name), 1),
        Kind.VIEWCHANGE: ViewChange(ROUND, 1, 1, Certificate(Kind.PREPARE, 0, what, ()), None),
        Kind.CERT: Cert(ROUND, Certificate(Kind.COMMIT, 0, what, ())),
        Kind.EVIDENCE: Evidence(ROUND, signed, signed),
        Kind.FETCH: Fetch(ROUND, PartKind.SET, digest(name)),
        Kind.BODY: Part(ROUND, PartKind.SET, name.encode()),
        Kind.PROPOSAL: ChangeProposal(ROUND, 1, name.encode()),
    }


PAIRS = [*product(Kind, Kind)]
ONE = bodies_of_one_author("x")
OTHER = bodies_of_one_author("y")
SAID_ONCE = (
    Kind.UPLOAD,
    Kind.PROPOSAL,
    Kind.LIST,
    Kind.PREPREPARE,
    Kind.PREPARE,
    Kind.COMMIT,
    Kind.VIEWCHANGE,
)
CONFLICTS = {(kind, kind) for kind in SAID_ONCE} | {(Kind.RECEIPT, Kind.LIST)}


def proven(rules: Rules, a: AnyMessage, b: AnyMessage) -> bool:
    first, second = (
        sign(rules, body) if author(body) is not None else rules.unsigned(body) for body in (a, b)
    )
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
    "a client and the server of its number": (Upload(6, 1, b"x"), UploadList(6, 1, (entry(1),))),
    "receipts of both uploads of a client": (
        Receipt(6, 1, 1, digest("x")),
        Receipt(6, 1, 1, digest("y")),
    ),
    "receipts of two clients": (Receipt(6, 1, 1, digest("x")), Receipt(6, 1, 2, digest("x"))),
    "a receipt kept among others": (
        Receipt(6, 1, 1, digest("x")),
        UploadList(6, 1, (entry(0), entry(1, "x"), entry(1, "y"))),
    ),
    "a receipt of another round": (Receipt(5, 1, 1, digest("x")), UploadList(6, 1, (entry(0),))),
    "a receipt of another server": (Receipt(6, 2, 1, digest("x")), UploadList(6, 1, (entry(0),))),
    "lists of two rounds": (UploadList(5, 1, (entry(0),)), UploadList(6, 1, (entry(1),))),
    "lists of two servers": (UploadList(6, 2, (entry(0),)), UploadList(6, 1, (entry(1),))),
    "votes in two views": (Prepare(6, 0, digest("x"), 1), Prepare(6, 1, digest("y"), 1)),
    "votes in two rounds": (Commit(5, 0, digest("x"), 1), Commit(6, 0, digest("y"), 1)),
    "votes of two servers": (Commit(6, 0, digest("x"), 1), Commit(6, 0, digest("y"), 2)),
    "votes of two phases": (Prepare(6, 0, digest("x"), 1), Commit(6, 0, digest("x"), 1)),
    "proposals in two views": (
        PrePrepare(6, 0, 1, record("x"), (), ()),
        PrePrepare(6, 4, 1, record("y"), (), ()),
    ),
    "view changes to two views": (ViewChange(1, 1, 1, None, None), ViewChange(1, 2, 1, None, None)),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_the_honest_say_is_no_evidence(name: str) -> None:
    a, b = HONEST[name]
    for first, second in ((a, b), (b, a), (a, a), (b, b)):
        assert not committee().conflict(first, second)
        assert not proven(committee(), first, second)


def test_a_receipt_is_broken_by_a_list_without_its_entry() -> None:
    rules = committee()
    receipt = Receipt(ROUND, 1, 1, digest("x"))
    for entries in (
        (),
        (entry(1, "y"),),
        (entry(0, "x"),),
        (entry(0, "x"), entry(1, "y"), entry(2, "x")),
    ):
        assert proven(rules, receipt, UploadList(ROUND, 1, entries))


def test_evidence_holds_only_with_both_signatures_and_its_round() -> None:
    rules = committee()
    a, b = (Prepare(ROUND, 0, digest(name), 1) for name in "ab")
    first = sign(rules, a)
    second = sign(rules, b)
    assert rules.proves(Evidence(ROUND, first, second))
    assert rules.proves(Evidence(ROUND, second, first))
    assert not any(
        rules.proves(Evidence(round_, first, second)) for round_ in (ROUND - 1, ROUND + 1)
    )
    assert not rules.proves(Evidence(ROUND, first, sign(rules, b, by=2)))
    assert not rules.proves(Evidence(ROUND, sign(rules, a, by=2), second))
    assert not rules.proves(Evidence(ROUND, first, sign(committee(purpose=b"another"), b)))


def test_a_second_signature_of_one_thing_is_no_evidence() -> None:
    rules = committee()
    body = Prepare(ROUND, 0, digest("a"), 1)
    again = Message(rules.run, body, sign(rules, body).raw, seal(b"a nonce", b""))
    assert not rules.proves(Evidence(ROUND, sign(rules, body), again))
