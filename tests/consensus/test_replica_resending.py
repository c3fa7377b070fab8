"""What is sent again when messages may have got lost, and to whom."""

from __future__ import annotations

import pytest

from fedrfq.consensus.events import Effect, Propose, Received, Send, Timer
from fedrfq.consensus.messages import Commit, Fetch, Kind, Message, PartKind, Prepare
from support.cluster import Cluster


def stuck(change_proposal: bool = False) -> Cluster:
    """Return a cluster where all have closed the first round, and all messages since are lost."""
    cluster = Cluster()
    cluster.passes = lambda sender, receiver, message: message.body.kind == Kind.UPLOAD
    if change_proposal:
        cluster.give(0, Propose(1, b"5"))
    cluster.train(1)
    cluster.settle()
    cluster.sent.clear()
    return cluster


def again(cluster: Cluster, server: int, kind: Kind) -> list[int]:
    """Return to whom a server resends messages of this kind."""
    cluster.sent.clear()
    cluster.expire(Timer.RESEND, server)
    return [to for sender, to, message in cluster.sent if message.body.kind == kind]


def test_a_list_goes_to_all_and_after_view_0_to_the_leader_alone() -> None:
    cluster = stuck()
    assert again(cluster, 0, Kind.LIST) == [1, 2, 3]
    cluster.parties[0].leave_for(1)
    assert again(cluster, 0, Kind.LIST) == [2]
    assert again(cluster, 0, Kind.VIEWCHANGE) == [1, 2, 3]
    cluster.parties[2].leave_for(1)
    assert again(cluster, 2, Kind.LIST) == [0, 1, 3]


def test_a_change_proposal_is_not_said_again_once_it_is_listed() -> None:
    assert again(stuck(change_proposal=True), 0, Kind.PROPOSAL) == []
    cluster = Cluster()
    cluster.give(0, Propose(1, b"5"))
    assert again(cluster, 0, Kind.PROPOSAL) == [1, 2, 3]


def asks(cluster: Cluster) -> bool:
    cluster.sent.clear()
    cluster.expire(Timer.RESEND, 0)
    return any(message.body == Fetch(1, PartKind.WORDS) for _, _, message in cluster.sent)


def test_others_are_asked_for_their_words_as_long_as_the_views_time_does_not_run() -> None:
    cluster = stuck()
    assert asks(cluster)
    cluster.passes = lambda sender, receiver, message: message.body.kind == Kind.LIST
    cluster.expire(Timer.RESEND)
    cluster.settle()
    assert cluster.parties[0].state.timing
    assert not asks(cluster)


@pytest.mark.parametrize("kind", [Prepare, Commit])
def test_a_vote_of_a_round_that_is_over_is_not_worth_a_look_at_its_signature(
    kind: type[Prepare | Commit],
) -> None:
    cluster = Cluster()
    cluster.train(1)
    cluster.settle()
    body = kind(1, 0, bytes(32), 1)
    forged = Message(cluster.rules.run, body, None, bytes(64))
    cluster.parties[0].ignored.clear()
    cluster.give(0, Received(1, forged))
    assert cluster.parties[0].ignored == {"old round": 1}


def test_what_is_wanted_is_asked_of_a_new_views_leader_alone_and_of_all_when_the_timer_rings() -> (
    None
):
    """A list may name any number of uploads that do not exist.

    A view change must not multiply the requests for them by the number of servers.
    """
    cluster = stuck()
    fetch = Fetch(1, PartKind.UPLOAD, bytes(32))
    asked = cluster.rules.unsigned(fetch)
    for server in (0, 2):
        cluster.parties[server].requests.wanted[fetch.digest] = fetch
        cluster.parties[server].leave_for(1)

    def requests(server: int) -> list[Effect]:
        effects = cluster.parties[server].effects
        return [effect for effect in effects if getattr(effect, "message", None) == asked]

    assert requests(0) == [Send(2, asked)]
    assert not requests(2)  # the leader itself
    assert sorted(again(cluster, 2, Kind.FETCH)) == [0, 1, 3, 3]  # and of one for its words
