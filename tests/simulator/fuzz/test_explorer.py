"""The explorer finds nothing wrong with the true replica, and finds what is broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fedrfq.consensus.events import Received
from fedrfq.consensus.inbox import HANDLERS, on_proposal
from fedrfq.consensus.messages import Kind, Message, PrePrepare
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.settling import settle
from fedrfq.simulator.fuzz.explorer import Explored, Joint, Search, explore
from fedrfq.simulator.fuzz.explorer_positions import fork, freeze, relevant_state
from fedrfq.simulator.fuzz.explorer_stage import FORGED, SERVERS, Stage
from fedrfq.simulator.fuzz.mutants.beliefs import NeverVerifiedLater


def search_to(
    depth: int, faulty: int, replica: type[Replica] = Replica, rules: type[Rules] = Rules
) -> Explored:
    """Search with one faulty server, to a depth or to the first violation."""
    search = Search(Stage(faulty, 1, replica, rules))
    while search.explored.depth < depth and search.explored.violation is None:
        search.deepen()
    return search.explored


def test_nothing_breaks_in_the_true_replica() -> None:
    progress: list[Explored] = []
    explored = explore(5, progress=progress.append)
    assert explored.violation is None
    assert explored.trace == ()
    assert (explored.depth, explored.view, explored.complete) == (5, 1, False)
    assert explored.decided > 50
    assert explored.transitions > explored.states > 1000
    assert progress[-1] == explored
    states = [explored.states for explored in progress]
    assert states == sorted(states)


def test_the_same_search_finds_the_same() -> None:
    first, second = (search_to(4, faulty=1) for _ in range(2))
    assert replace(first, seconds=0) == replace(second, seconds=0)


def test_a_search_ends_when_nothing_is_left() -> None:
    explored = explore(50, views=0)
    assert explored.complete
    assert explored.violation is None
    assert explored.view == 0
    assert 0 < explored.decided < explored.states
    assert explored.depth < 20


@pytest.mark.parametrize("faulty", range(SERVERS))
def test_both_values_are_valid_and_the_faulty_server_may_propose_either(faulty: int) -> None:
    stage = Stage(faulty, 1, Replica, Rules)
    a, b = stage.values
    assert a.record != b.record
    assert all(
        stage.truth.authentic(m)
        for m in stage.fixed_lies
        if m.body.kind not in (Kind.BODY, Kind.CERT) and m.signature != FORGED
    )
    first = [m.body for m in stage.fixed_lies if isinstance(m.body, PrePrepare)]
    assert len(first) == (2 if stage.truth.roster.leader(1, 0) == faulty else 0)
    assert all(stage.truth.proper_proposal(body) for body in first)


def test_a_fork_of_a_replica_goes_its_own_way() -> None:
    stage = Stage(1, 1, Replica, Rules)
    replica = stage.opened(0).replica
    before = relevant_state(replica)
    twin = fork(replica)
    proposal = next(m for m in stage.fixed_lies if m.body.kind == Kind.PREPREPARE)
    twin.step(Received(1, proposal))
    assert relevant_state(replica) == before != relevant_state(twin)


def single_deliveries(search: Search, depth: int) -> set[object]:
    """Return what the servers can have said after single deliveries and timeouts in every order."""
    layer = {search.current}
    seen = layer
    for _ in range(depth):
        layer = {after for joint in layer for after in _one_delivery(search, joint)} - seen
        seen = seen | layer
    return {_said(search, joint) for joint in seen}


def _one_delivery(search: Search, joint: Joint) -> Iterator[Joint]:
    for index, pool in enumerate(search.pools_of(joint)):
        server = search.servers[index]
        at = joint[index]
        position = server.all[at]
        events: list[Message | None] = [m for messages in pool.messages.values() for m in messages]
        if position.decided is not None:
            continue
        if position.timing and position.replica.view < search.stage.views:
            events.append(None)
        for event in events:
            yield (*joint[:index], server.step(at, event).to, *joint[index + 1 :])


def _said(search: Search, joint: Joint) -> tuple[object, ...]:
    return tuple(freeze(position.said) for position in search.positions(joint))


@pytest.mark.parametrize("faulty", range(3))
def test_taking_messages_a_few_at_once_leaves_nothing_out(faulty: int) -> None:
    depth = 3
    search = Search(Stage(faulty, 1, Replica, Rules))
    for _ in range(depth):
        search.deepen()
    reached = {_said(search, joint) for joint in search.arrivals}
    single = single_deliveries(Search(Stage(faulty, 1, Replica, Rules)), depth)
    assert single <= reached
    assert len(single) > 10


class _OneShort(Roster):
    quorum = 2  # type: ignore[assignment]


class QuorumOneShort(Rules):
    """A quorum has one vote too few."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(_OneShort(roster.scheme, roster.servers, roster.clients))


class PreparedLeftOut(Replica):
    """A server's view changes never say what it has prepared."""

    def leave_for(self, view: int) -> None:
        self.certificates.prepared = None
        super().leave_for(view)


class NewViewUnchecked(Rules):
    """A new view's value need not be the prepared one."""

    def bound(self, changes: object) -> None:
        return None


def _forget_vote(replica: Replica, peer: int, message: Message) -> None:
    replica.votes.proposals.clear()
    replica.state.own.pop(Kind.PREPARE, None)
    on_proposal(replica, peer, message)


class DoubleVote(Replica):
    """A server votes for every proposal that it sees."""

    handlers = HANDLERS | {PrePrepare: _forget_vote}


class VotesInViewsItLeft(Replica):
    """A server asks for the next view, and goes on in this one."""

    joins = False

    def _join(self) -> bool:
        # It joins others for good: staying behind, it would join them again without end.
        self.joins = True
        joined = super()._join()
        self.joins = False
        return joined

    def leave_for(self, view: int) -> None:
        here = self.view
        super().leave_for(view)
        if not self.joins:
            self.state.view = here
            self.state.leader = self.roster.leader(self.round, here)


class CommitsUnchecked(Replica):
    """A server takes two COMMITs for a decision."""

    def _decide(self) -> bool:
        votes = list(self.votes.commits.values())
        records = [r for r in self.votes.proposed() if r.value(self.rules.run) == votes[0].value]
        if len(votes) < 2 or not records:
            return False
        settle(self, self.rules.certificate(votes, records[0]), self.me)
        return True


@pytest.mark.parametrize(
    ("broken", "invariant", "depth"),
    [
        (DoubleVote, "double-sign", 3),
        (VotesInViewsItLeft, "left-view", 4),
        (CommitsUnchecked, "certificate", 5),
    ],
)
def test_a_broken_replica_is_found_out(broken: type[Replica], invariant: str, depth: int) -> None:
    explored = explore(depth, replica=broken)
    assert explored.violation is not None
    assert explored.violation.name == invariant
    assert explored.trace


def test_a_replica_that_never_verifies_what_could_wait_is_found_out() -> None:
    explored = explore(4, replica=NeverVerifiedLater)
    assert explored.violation is not None
    assert explored.violation.name == "certificate"


def test_a_quorum_one_short_is_found_out() -> None:
    explored = explore(4, rules=QuorumOneShort)
    assert explored.violation is not None
    assert explored.violation.name == "certificate"


@pytest.mark.parametrize(
    ("replica", "rules", "faulty"),
    [(PreparedLeftOut, Rules, 0), (Replica, NewViewUnchecked, 2)],
    ids=["left out", "unchecked"],
)
def test_what_was_prepared_is_lost(replica: type[Replica], rules: type[Rules], faulty: int) -> None:
    """After ten steps or more one server decides in view 0, the others something else in view 1."""
    explored = search_to(12, faulty, replica, rules)
    assert explored.violation is not None
    assert explored.violation.name == "agreement"
    assert any("CERT a" in line for line in explored.trace)
    assert any("CERT b" in line for line in explored.trace)
