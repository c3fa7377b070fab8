"""Change proposals of servers, and the successor that ends a run."""

from __future__ import annotations

import pytest

from fedrfq.consensus.events import (
    Broadcast,
    Expired,
    Persist,
    Propose,
    Received,
    Send,
    SetTimer,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import (
    ChangeProposal,
    Evidence,
    Fetch,
    Kind,
    PartKind,
    UploadList,
)
from fedrfq.consensus.records import NO_SUCCESSOR
from support.cluster import Cluster


def proposers(cluster: Cluster, server: int) -> list[int]:
    """Return the servers whose proposals a server lists."""
    body = cluster.said(server, Kind.LIST)[0].body
    assert isinstance(body, UploadList)
    return [proposer for proposer, _ in body.proposals]


def successors(cluster: Cluster, round_: int = 1) -> set[bytes]:
    """Return the successors that the servers have decided on in a round."""
    decided = [
        decision.outcome.successor
        for server in range(cluster.roster.n)
        for decision in cluster.decided[server]
        if decision.certificate.record.round == round_ and decision.outcome is not None
    ]
    return set(decided)


def after_proposals(*contents: bytes | None) -> Cluster:
    """Return a cluster that has decided a round in which servers have proposed these changes."""
    cluster = Cluster()
    for server, content in enumerate(contents):
        if content is not None:
            cluster.give(server, Propose(1, content))
    cluster.settle()
    cluster.train(1)
    cluster.settle()
    return cluster


def test_what_a_quorum_proposes_is_the_successor_and_ends_the_run() -> None:
    cluster = after_proposals(b"5", None, b"5", b"5")
    assert proposers(cluster, 0) == [0, 2, 3]
    assert cluster.globals_(1) == dict.fromkeys(range(4), b"1234")
    assert successors(cluster) == {b"5"}
    assert all(cluster.parties[server].over for server in range(4))
    record = cluster.parties[0].chain[1].record
    assert record.ends_run()
    assert record.successor in cluster.parties[0].record_parts.last


@pytest.mark.parametrize(
    "contents",
    [(b"5",), (b"5", b"5"), (b"5", b"5", b"6", b"6"), (b"5", b"5", b"6"), ()],
)
def test_what_fewer_propose_changes_nothing(contents: tuple[bytes, ...]) -> None:
    cluster = after_proposals(*contents)
    assert proposers(cluster, 0) == list(range(len(contents)))
    assert successors(cluster) == {b""}
    record = cluster.parties[0].chain[1].record
    assert record.successor == NO_SUCCESSOR
    assert not record.ends_run()
    cluster.train(2)
    cluster.settle()
    assert cluster.parties[0].round == 3


def test_proposals_of_different_rounds_do_not_add_up() -> None:
    cluster = after_proposals(b"5", b"5")
    for server in (2, 3):
        cluster.give(server, Propose(2, b"5"))
    cluster.settle()
    cluster.train(2)
    cluster.settle()
    assert successors(cluster, 2) == {b""}


def test_a_proposal_that_only_a_list_names_is_fetched_before_it_counts() -> None:
    """Server 3 hears of proposals from lists alone, and still votes for the same record."""
    cluster = Cluster()
    cluster.passes = lambda s, r, m: not (r == 3 and m.body.kind == Kind.PROPOSAL)
    for server in range(3):
        cluster.give(server, Propose(1, b"5"))
    cluster.settle()
    cluster.passes = lambda s, r, m: True
    cluster.train(1)
    cluster.settle()
    fetched = [m.body.what for m in cluster.said(3, Kind.FETCH) if isinstance(m.body, Fetch)]
    assert PartKind.PROPOSAL in fetched
    assert successors(cluster) == {b"5"}
    assert len(cluster.said(3, Kind.PREPARE)) == 1


def test_it_is_durable_before_it_is_sent_and_gets_no_receipt() -> None:
    cluster = Cluster()
    effects = cluster.give(2, Propose(1, b"5"))
    assert [type(e) for e in effects] == [Persist, Broadcast]
    cluster.settle()
    assert not [m for _, _, m in cluster.sent if m.body.kind == Kind.RECEIPT]
    assert (2, cluster.said(2, Kind.PROPOSAL)[0].digest) in (
        cluster.parties[0].proposal_pool.promised
    )


def test_no_round_waits_for_it_and_it_does_not_make_up_for_clients() -> None:
    cluster = Cluster(minimum=3)
    for server in range(4):
        cluster.give(server, Propose(1, b"5"))
    cluster.settle()
    cluster.train(1, [b"1", b"2", None, None])
    cluster.settle()
    effects = cluster.give(0, Expired(Timer.DEADLINE))
    assert Waiting(2, 3) in effects
    assert not cluster.said(0, Kind.LIST)
    other = Cluster(minimum=3)
    other.train(1)
    other.settle()
    assert other.globals_(1) == dict.fromkeys(range(4), b"1234")


@pytest.mark.parametrize("why", ["twice", "another round", "closed", "inadmissible"])
def test_when_nothing_is_proposed(why: str) -> None:
    cluster = Cluster()
    if why == "twice":
        cluster.give(2, Propose(1, b"5"))
    if why == "closed":
        cluster.passes = lambda s, r, m: s < 0
        cluster.train(1)
        cluster.settle()
    effects = cluster.give(
        2, Propose(2 if why == "another round" else 1, b"x" if why == "inadmissible" else b"6")
    )
    assert effects == []


def test_what_the_application_refuses_is_not_stored() -> None:
    cluster = Cluster()
    lie = cluster.say(3, ChangeProposal(1, 3, b"no federation"))
    assert cluster.give(0, Received(3, lie)) == []
    assert cluster.parties[0].ignored["inadmissible change proposal"] == 1


def test_after_a_restart_it_says_the_same_again_and_nothing_else() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: False
    cluster.give(2, Propose(1, b"5"))
    cluster.settle()
    cluster.restart(2)
    assert cluster.give(2, Propose(1, b"6")) == []
    cluster.passes = lambda s, r, m: True
    cluster.expire(Timer.RESEND, 2)
    cluster.settle()
    cluster.train(1)
    cluster.settle()
    assert proposers(cluster, 0) == [2]
    assert len(cluster.said(2, Kind.PROPOSAL)) == 1


def test_two_change_proposals_convict_a_server_and_neither_counts() -> None:
    cluster = Cluster()
    change_proposals = [cluster.say(3, ChangeProposal(1, 3, content)) for content in (b"5", b"6")]
    for server in (0, 1):
        cluster.give(server, Propose(1, b"5"))
    for server in (0, 1, 2):
        for change_proposal in change_proposals:
            cluster.give(server, Received(3, change_proposal))
    cluster.train(1)
    cluster.settle()
    assert successors(cluster) == {b""}
    evidence = cluster.accused[0][0].body
    assert isinstance(evidence, Evidence)
    assert evidence.first.author == 3


def test_nobody_proposes_in_anothers_name() -> None:
    cluster = Cluster()
    cluster.give(0, Received(3, cluster.say(3, ChangeProposal(1, 2, b"5"))))
    assert cluster.parties[0].ignored["bad signature"] == 1


def test_no_client_gets_a_proposal() -> None:
    cluster = Cluster()
    cluster.give(0, Propose(1, b"5"))
    digest = cluster.said(0, Kind.PROPOSAL)[0].digest
    fetch = cluster.rules.unsigned(Fetch(1, PartKind.PROPOSAL, digest))
    assert cluster.give(0, Received(~0, fetch)) == []
    assert [type(e) for e in cluster.give(0, Received(1, fetch))] == [Send]


# The end


def ended() -> Cluster:
    """Return a cluster whose run ends with its first round, of which server 3 knows nothing yet."""
    cluster = Cluster()
    for server in range(4):
        cluster.give(server, Propose(1, b"5"))
    cluster.settle()
    cluster.passes = lambda s, r, m: not (r == 3 and m.body.kind in (Kind.COMMIT, Kind.CERT))
    cluster.train(1)
    cluster.settle()
    cluster.passes = lambda s, r, m: True
    cluster.sent.clear()
    return cluster


def test_when_all_is_over_nothing_more_is_said() -> None:
    cluster = ended()
    for restarts in range(2):
        cluster.train(2)
        cluster.expire(Timer.RESEND, *(~client for client in range(4)))
        cluster.give(0, Propose(2, b"5"))
        for timer in Timer:
            cluster.expire(timer, 0, 1, 2)
        cluster.passes = lambda s, r, m: 3 not in (s, r)
        cluster.settle()
        assert not [m for s, _, m in cluster.sent if s >= 0 and m.body.round == 2], restarts
        assert not cluster.parties[0].upload_pool.messages
        assert cluster.parties[0].ignored["the run is over"] >= 4
        for timer in Timer:
            assert not [e for e in cluster.give(0, Expired(timer)) if not isinstance(e, SetTimer)]
        cluster.sent.clear()
        for server in (0, 1, 2):
            cluster.restart(server)


def test_who_is_behind_still_gets_the_last_certificate_and_its_parts() -> None:
    cluster = ended()
    assert cluster.parties[3].round == 1
    cluster.expire(Timer.RESEND, 3)
    cluster.settle()
    assert cluster.globals_(1) == dict.fromkeys(range(4), b"1234")
    assert cluster.parties[3].over
    part = cluster.parties[0].chain[1].record.globals_
    effects = cluster.give(
        0, Received(~0, cluster.rules.unsigned(Fetch(1, PartKind.GLOBALS, part)))
    )
    assert [type(e) for e in effects] == [Send]


def test_a_server_that_has_only_the_certificate_is_silent_and_fetches_the_successor() -> None:
    cluster = Cluster()
    for server in range(3):
        cluster.give(server, Propose(1, b"5"))
    cluster.passes = lambda s, r, m: 3 not in (s, r)
    cluster.train(1)
    cluster.settle()
    cluster.expire(Timer.DEADLINE)
    cluster.settle()
    # The parts come only after a while.
    cluster.passes = lambda s, r, m: m.body.kind != Kind.BODY
    cluster.expire(Timer.RESEND, 3)
    cluster.settle()
    assert cluster.parties[3].silent
    assert not cluster.parties[3].over
    cluster.passes = lambda s, r, m: True
    cluster.expire(Timer.RESEND, 3)
    cluster.settle()
    assert cluster.parties[3].over
    assert cluster.parties[3].outcome.successor == b"5"
    cluster.restart(3)
    assert cluster.parties[3].over


def test_a_client_fetches_the_successor_when_there_is_one() -> None:
    cluster = Cluster()
    wants = (PartKind.GLOBALS, PartKind.SUCCESSOR)
    for round_ in (1, 2):
        cluster.parties[~0].wants = wants
        if round_ == 2:
            for server in range(4):
                cluster.give(server, Propose(2, b"5"))
            cluster.settle()
        cluster.train(round_)
        cluster.settle()
        fetched = [m.body.what for m in cluster.said(~0, Kind.FETCH) if m.body.round == round_]
        assert (PartKind.SUCCESSOR in fetched) == (round_ == 2)
    outcomes = [d.outcome for d in cluster.decided[~0] if d.outcome is not None]
    assert [outcome.successor for outcome in outcomes] == [b"", b"5"]
