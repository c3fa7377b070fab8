"""Servers' change proposals, and a run that ends."""

from __future__ import annotations

import pytest

from fedrfq.consensus.events import (
    Broadcast,
    Expired,
    Persist,
    Received,
    Send,
    SetTimer,
    Submit,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import Evidence, Fetch, Kind, PartKind, Upload, UploadList
from support.cluster import Cluster


def listed(cluster: Cluster, server: int) -> list[int]:
    body = cluster.said(server, Kind.LIST)[0].body
    assert isinstance(body, UploadList)
    return [client for client, _ in body.entries]


def test_what_a_server_moves_before_all_have_sent_is_decided_on() -> None:
    cluster = Cluster()
    cluster.give(2, Submit(1, b"5"))
    cluster.settle()
    cluster.train(1)
    cluster.settle()
    assert cluster.globals_(1) == dict.fromkeys(range(4), b"12345")
    assert listed(cluster, 0) == [0, 1, 2, 3, 6]


def test_it_is_durable_before_it_is_sent_and_gets_no_receipt() -> None:
    cluster = Cluster()
    effects = cluster.give(2, Submit(1, b"5"))
    assert [type(e) for e in effects] == [Persist, Broadcast]
    cluster.settle()
    assert not [m for _, _, m in cluster.sent if m.body.kind == Kind.RECEIPT]
    assert (6, cluster.said(2, Kind.UPLOAD)[0].digest) in cluster.parties[0].upload_pool.promised


def test_no_round_waits_for_it_and_it_does_not_make_up_for_clients() -> None:
    cluster = Cluster(minimum=3)
    for server in range(4):
        cluster.give(server, Submit(1, b"5"))
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
def test_when_it_moves_nothing(why: str) -> None:
    cluster = Cluster()
    if why == "twice":
        cluster.give(2, Submit(1, b"5"))
    if why == "closed":
        cluster.passes = lambda s, r, m: s < 0
        cluster.train(1)
        cluster.settle()
    effects = cluster.give(
        2, Submit(2 if why == "another round" else 1, b"x" if why == "inadmissible" else b"6")
    )
    assert effects == []


def test_after_a_restart_it_says_the_same_again_and_nothing_else() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: False
    cluster.give(2, Submit(1, b"5"))
    cluster.settle()
    cluster.restart(2)
    assert cluster.give(2, Submit(1, b"6")) == []
    cluster.passes = lambda s, r, m: True
    cluster.expire(Timer.RESEND, 2)
    cluster.settle()
    cluster.train(1)
    cluster.settle()
    assert cluster.globals_(1) == dict.fromkeys(range(4), b"12345")
    assert len(cluster.said(2, Kind.UPLOAD)) == 1


def test_two_change_proposals_convict_a_server_and_neither_counts() -> None:
    cluster = Cluster()
    change_proposals = [cluster.say(3, Upload(1, 7, content)) for content in (b"5", b"6")]
    for server in (0, 1, 2):
        for change_proposal in change_proposals:
            cluster.give(server, Received(3, change_proposal))
    cluster.train(1)
    cluster.settle()
    assert cluster.globals_(1)[0] == b"1234"
    evidence = cluster.accused[0][0].body
    assert isinstance(evidence, Evidence)
    assert cluster.roster.party_behind(evidence.first.author or 0) == 3


def test_nobody_moves_in_anothers_name() -> None:
    cluster = Cluster()
    cluster.give(0, Received(3, cluster.say(3, Upload(1, 6, b"5"))))
    assert cluster.parties[0].ignored["bad signature"] == 1


# The end


def ended() -> Cluster:
    """Return a cluster whose run ends with its first round, of which server 3 knows nothing yet."""
    cluster = Cluster()
    cluster.passes = lambda s, r, m: not (r == 3 and m.body.kind in (Kind.COMMIT, Kind.CERT))
    cluster.train(1, [b"1", b"2", b"3", b"93"])
    cluster.settle()
    cluster.passes = lambda s, r, m: True
    cluster.sent.clear()
    return cluster


def test_when_all_is_over_nothing_more_is_said() -> None:
    cluster = ended()
    for restarts in range(2):
        cluster.train(2)
        cluster.expire(Timer.RESEND, *(~client for client in range(4)))
        cluster.give(0, Submit(2, b"5"))
        for timer in Timer:
            cluster.expire(timer, 0, 1, 2)
        cluster.passes = lambda s, r, m: 3 not in (s, r)
        cluster.settle()
        assert not [m for s, _, m in cluster.sent if s >= 0 and m.body.round == 2], restarts
        assert not cluster.parties[0].upload_pool.uploads
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
    assert cluster.globals_(1) == dict.fromkeys(range(4), b"12393")
    assert cluster.parties[3].over
    part = cluster.parties[0].chain[1].record.globals_
    effects = cluster.give(
        0, Received(~0, cluster.rules.unsigned(Fetch(1, PartKind.GLOBALS, part)))
    )
    assert [type(e) for e in effects] == [Send]


def test_it_ends_too_for_who_learns_the_outcome_by_its_parts() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: 3 not in (s, r)
    cluster.train(1, [b"1", b"2", b"3", b"93"])
    cluster.settle()
    cluster.expire(Timer.DEADLINE)
    cluster.settle()
    cluster.passes = lambda s, r, m: True
    cluster.expire(Timer.RESEND, 3)
    cluster.settle()
    assert cluster.parties[3].silent
