"""View changes and proposals made by hand, and each of their conditions broken alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrfq.consensus.messages import (
    AnyMessage,
    Certificate,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.rules import Rules
from support.handmade import ROUND, SIZES, certified, committee, digest, entry, record, sign

# View changes


def last(rules: Rules) -> Certificate:
    """Return a certificate of the previous round."""
    return certified(
        rules, Kind.COMMIT, range(rules.roster.quorum), what=record("before", ROUND - 1)
    )


def change(
    rules: Rules,
    server: int = 0,
    view: int = 2,
    prepared: Certificate | None = None,
    **changed: AnyMessage,
) -> ViewChange:
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
    assert not [
        name
        for name, prepared in bad.items()
        if rules.proper_change(change(rules, prepared=prepared))
    ]


def test_a_view_change_without_the_certificate_of_the_last_round() -> None:
    rules = committee()
    bad = {
        "none": None,
        "one short": certified(rules, Kind.COMMIT, range(2), what=record("before", ROUND - 1)),
        "prepared": certified(rules, Kind.PREPARE, range(3), what=record("before", ROUND - 1)),
        "of this round": certified(rules, Kind.COMMIT, range(3)),
        "of an older round": certified(
            rules, Kind.COMMIT, range(3), what=record("before", ROUND - 2)
        ),
    }
    assert not [
        name for name, found in bad.items() if rules.proper_change(change(rules, last=found))
    ]
    first = certified(rules, Kind.COMMIT, range(3), what=record("before", 0))
    assert not rules.proper_change(ViewChange(1, 1, 0, None, first)), (
        "there is nothing before the first round"
    )
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
    changes = [
        sign(rules, change(rules, server, prepared=p))
        for server, p in enumerate((low, None, high, None))
    ]
    assert rules.bound(changes) == rules.bound(reversed(changes)) == high
    assert rules.bound(changes[:2]) == low
    assert rules.bound(changes[1:2]) is None
    assert rules.bound([]) is None
    assert rules.bound([*changes, sign(rules, Prepare(ROUND, 3, digest("a"), 0))]) == high


# Proposals


def lists(rules: Rules, number: int | None = None, round_: int = ROUND) -> tuple[Message, ...]:
    if number is None:
        number = rules.roster.n - rules.roster.f
    return tuple(sign(rules, UploadList(round_, server, (entry(0),))) for server in range(number))


def changes(rules: Rules, view: int, prepared: Certificate | None = None) -> tuple[Message, ...]:
    """Return the last quorum of servers' view changes, the first of them with `prepared`."""
    servers = range(rules.roster.n - rules.roster.quorum, rules.roster.n)
    return tuple(
        sign(rules, change(rules, s, view, prepared if s == servers[0] else None)) for s in servers
    )


def proposal(rules: Rules, view: int = 0, **changed: AnyMessage) -> PrePrepare:
    """Return a leader's free choice, with some fields changed."""
    leader = rules.roster.leader(ROUND, view)
    view_changes: tuple[Message, ...] = ()
    if view:
        view_changes = changes(rules, view)
    body = PrePrepare(ROUND, view, leader, record(), lists(rules), view_changes)
    return replace(body, **changed)


@pytest.mark.parametrize("n", SIZES)
def test_proper_proposals(n: int) -> None:
    rules = committee(n)
    prepared = certified(rules, Kind.PREPARE, range(rules.roster.quorum), 1, record("b"))
    assert rules.proper_proposal(proposal(rules))
    assert rules.proper_proposal(proposal(rules, 2))
    assert rules.proper_proposal(
        proposal(rules, 2, record=record("b"), lists=(), changes=changes(rules, 2, prepared))
    )


@pytest.mark.parametrize("view", [0, 2])
@pytest.mark.parametrize("n", SIZES)
def test_only_the_leader_proposes_and_only_for_its_round(n: int, view: int) -> None:
    rules = committee(n)
    leader = rules.roster.leader(ROUND, view)
    assert not any(
        rules.proper_proposal(proposal(rules, view, server=s)) for s in range(n) if s != leader
    )
    assert not rules.proper_proposal(proposal(rules, view, record=record("a", ROUND - 1)))


@pytest.mark.parametrize("view", [0, 2])
@pytest.mark.parametrize("n", SIZES)
def test_a_free_choice_without_its_lists(n: int, view: int) -> None:
    rules = committee(n)
    good = lists(rules)
    entries = (entry(0),)
    bad = {
        "none": (),
        "one short": good[:-1],
        "one too many": lists(rules, len(good) + 1),
        "a server twice": (*good[:-1], good[0]),
        "a server twice on top": (*good, good[0]),
        "a server twice, with two lists": (
            *good[:-1],
            sign(rules, UploadList(ROUND, 0, (entry(1),))),
        ),
        "of the last round": (*good[:-1], sign(rules, UploadList(ROUND - 1, n - 1, entries))),
        "of the next round": (*good[:-1], sign(rules, UploadList(ROUND + 1, n - 1, entries))),
        "forged": (*good[:-1], sign(rules, UploadList(ROUND, n - 1, entries), by=0)),
        "of a stranger": (*good[:-1], sign(rules, UploadList(ROUND, n, entries))),
        "of another run": (
            *good[:-1],
            sign(committee(n, purpose=b"another"), UploadList(ROUND, n - 1, entries)),
        ),
        "an empty one": (*good[:-1], sign(rules, UploadList(ROUND, n - 1, ()))),
        "a vote": (*good[:-1], sign(rules, Prepare(ROUND, 0, digest("a"), n - 1))),
        "an upload": (*good[:-1], sign(rules, Upload(ROUND, 0, b""))),
        "a vote on top": (*good, sign(rules, Prepare(ROUND, 0, digest("a"), n - 1))),
    }
    assert not [
        name
        for name, found in bad.items()
        if rules.proper_proposal(proposal(rules, view, lists=found))
    ]


@pytest.mark.parametrize("n", SIZES)
def test_a_new_view_without_its_view_changes(n: int) -> None:
    rules = committee(n)
    good = changes(rules, 2)
    body = change(rules, n - 1)
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
    assert not [
        name
        for name, found in bad.items()
        if rules.proper_proposal(proposal(rules, 2, changes=found))
    ]


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
    assert not rules.proper_proposal(replace(bound, record=record("a"), lists=lists(rules))), (
        "a free choice"
    )
    assert not rules.proper_proposal(replace(bound, lists=lists(rules))), "lists that nobody needs"
