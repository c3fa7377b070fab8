"""A server that has lost its log, and the compaction of logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Broadcast, Effect, Persist, Propose, Received, Send, Timer
from fedrfq.consensus.messages import SIGNED, Fetch, Kind, Message, Part, PartKind
from fedrfq.consensus.rejoin import lost_log_mark
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from support.cluster import Cluster, roster

NONCE = b"n" * 32


def advanced(rounds: int) -> Cluster:
    cluster = Cluster()
    for round_ in range(1, rounds + 1):
        cluster.train(round_)
        cluster.settle()
    return cluster


def answer(cluster: Cluster, round_: int, nonce: bytes = NONCE) -> Message:
    """Return the answer of a server whose last decided round is this one."""
    if round_:
        proof = cluster.parties[1].chain[round_].write()
    else:
        proof = b""
    return cluster.rules.unsigned(Part(round_, PartKind.STANDING, nonce + proof))


def signed(effects: list[Effect], server: int) -> list[Message]:
    found = [e.message for e in effects if isinstance(e, Send | Broadcast | Persist)]
    return [m for m in found if m.body.kind in SIGNED and m.author == server]


def test_it_asks_first_of_all_and_makes_that_durable() -> None:
    cluster = advanced(1)
    cluster.lose(0, NONCE)
    assert set(cluster.logs[0]) == {lost_log_mark(cluster.rules, NONCE)}
    asked = [
        (to, m)
        for sender, to, m in cluster.sent
        if sender == 0 and m == lost_log_mark(cluster.rules, NONCE)
    ]
    assert [to for to, _ in asked] == [1, 2, 3]
    cluster.restart(0)
    assert cluster.parties[0].rejoining.nonce == NONCE
    cluster.sent.clear()
    cluster.expire(Timer.RESEND, 0)
    assert [to for _, to, m in cluster.sent if m.body == Fetch(0, PartKind.STANDING, NONCE)] == [
        1,
        2,
        3,
    ]


def test_it_follows_is_silent_for_two_rounds_and_then_speaks_again() -> None:
    cluster = advanced(2)
    cluster.lose(0, NONCE)
    cluster.sent.clear()
    cluster.settle()
    rejoined = cluster.parties[0]
    assert (rejoined.rejoining.nonce, rejoined.rejoining.abstains_through, rejoined.round) == (
        None,
        4,
        3,
    )
    for round_ in (3, 4):
        cluster.give(0, Propose(round_, b"5"))
        cluster.train(round_)
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.expire(Timer.VIEW)
        cluster.expire(Timer.RESEND)
        cluster.settle()
        assert cluster.parties[0].round == round_ + 1
        if round_ == 3:
            cluster.restart(0)
    assert not [m for s, _, m in cluster.sent if m.author == 0 and s == 0]
    assert cluster.globals_(4)[0] == cluster.globals_(4)[1]
    cluster.train(5)
    cluster.settle()
    assert {m.body.kind for m in cluster.said(0, Kind.LIST) + cluster.said(0, Kind.COMMIT)} == {
        Kind.LIST,
        Kind.COMMIT,
    }
    assert [m.body.round for m in cluster.said(0, Kind.LIST)] == [5]


def test_the_highest_round_of_n_minus_f_answers_counts() -> None:
    cluster = advanced(3)
    cluster.lose(0, NONCE)
    for peer, round_ in ((1, 1), (2, 3)):
        cluster.give(0, Received(peer, answer(cluster, round_)))
        cluster.give(0, Received(peer, answer(cluster, 0)))
    assert cluster.parties[0].rejoining.nonce == NONCE
    effects = cluster.give(0, Received(3, answer(cluster, 0)))
    assert Persist(cluster.rules.unsigned(Part(5, PartKind.STANDING, NONCE))) in effects
    assert cluster.parties[0].rejoining.abstains_through == 5


def test_silence_ends_at_once_where_the_others_are_far_beyond() -> None:
    """It has followed by certificates while answers were missing."""
    cluster = advanced(3)
    cluster.passes = lambda s, r, m: (
        not (isinstance(m.body, Part) and m.body.what == PartKind.STANDING)
    )
    cluster.lose(0, NONCE)
    cluster.settle()
    cluster.expire(Timer.RESEND)
    cluster.settle()
    assert cluster.parties[0].round == 4
    assert cluster.parties[0].silent
    for peer in (1, 2, 3):
        cluster.give(0, Received(peer, answer(cluster, 1)))
    assert not cluster.parties[0].silent


BAD = {
    "another number": (1, lambda c: answer(c, 1, b"m" * 32)),
    "of itself": (0, lambda c: answer(c, 1)),
    "of a client": (~1, lambda c: answer(c, 1)),
    "of a stranger": (9, lambda c: answer(c, 1)),
    "too short": (1, lambda c: c.rules.unsigned(Part(1, PartKind.STANDING, NONCE[:-1]))),
    "bytes after it": (
        1,
        lambda c: c.rules.unsigned(Part(1, PartKind.STANDING, answer(c, 1).body.content + b"!")),
    ),
    "garbage": (1, lambda c: c.rules.unsigned(Part(1, PartKind.STANDING, NONCE + b"garbage"))),
    "too few votes": (1, lambda c: c.rules.unsigned(Part(1, PartKind.STANDING, NONCE + few(c)))),
}


def few(cluster: Cluster) -> bytes:
    certificate = cluster.parties[1].chain[1]
    return replace(certificate, signatures=certificate.signatures[1:]).write()


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer(name: str) -> None:
    cluster = advanced(1)
    cluster.lose(0, NONCE)
    peer, make = BAD[name]
    assert cluster.give(0, Received(peer, make(cluster))) == []
    assert cluster.parties[0].rejoining.answers == {}


def test_who_asks_itself_does_not_answer_and_clients_are_not_told() -> None:
    cluster = advanced(1)
    cluster.lose(0, NONCE)
    question = cluster.rules.unsigned(Fetch(0, PartKind.STANDING, b"m" * 32))
    assert cluster.give(0, Received(1, question)) == []
    assert cluster.give(1, Received(~0, question)) == []
    assert cluster.give(1, Received(0, question)) == [Send(0, answer(cluster, 1, b"m" * 32))]
    assert Cluster().give(1, Received(0, question)) == [Send(0, answer(cluster, 0, b"m" * 32))]


def test_what_it_alone_decided_before_is_covered() -> None:
    """It decides round 1 alone, signs its list of round 2, and loses its log.

    The others know of no decided round at all.
    """
    cluster = Cluster(minimum=2)
    cluster.passes = lambda s, r, m: (
        not (s >= 0 and r > 0 and m.body.kind in (Kind.COMMIT, Kind.CERT))
    )
    cluster.train(1)
    cluster.settle()
    cluster.passes = lambda s, r, m: s < 0 or r < 0
    cluster.train(2)
    cluster.settle()
    cluster.expire(Timer.DEADLINE, 0)
    before = cluster.said(0, Kind.LIST)
    assert [m.body.round for m in before] == [1, 2]
    cluster.queue.clear()
    cluster.passes = lambda s, r, m: True
    cluster.lose(0, NONCE)
    for _ in range(3):
        cluster.settle()
        cluster.expire(Timer.RESEND)
        cluster.settle()
        cluster.expire(Timer.VIEW, 1, 2, 3)
        cluster.settle()
        cluster.train(2)
    cluster.expire(Timer.DEADLINE)
    cluster.settle()
    assert cluster.parties[0].rejoining.abstains_through == 2
    assert cluster.parties[0].round == cluster.parties[1].round == 3
    assert cluster.said(0, Kind.LIST) == before


def test_one_server_alone_cannot_rejoin() -> None:
    with pytest.raises(UserError, match="nobody else knows"):
        lost_log_mark(Rules(roster(1)), NONCE)
    with pytest.raises(ValueError, match="32 bytes"):
        lost_log_mark(Rules(roster(4)), b"short")


# Compaction


def test_a_compacted_log() -> None:
    """Of two and a half rounds, the first two leave only their decisions and the last outcome."""
    cluster = advanced(2)
    cluster.give(0, Propose(3, b"5"))
    cluster.train(3, [b"1"])
    cluster.settle()
    short = compacted(cluster.logs[0])
    kinds = [(m.body.round, m.body.kind) for m in short]
    assert kinds == [
        (1, Kind.CERT),
        *[(2, Kind.BODY)] * 4,
        (2, Kind.CERT),
        (3, Kind.PROPOSAL),
        (3, Kind.UPLOAD),
    ]
    assert compacted([]) == []


def test_the_mark_of_a_server_that_rejoins_stays_as_long_as_it_counts() -> None:
    cluster = advanced(1)
    cluster.lose(0, NONCE)
    assert compacted(cluster.logs[0]) == [lost_log_mark(cluster.rules, NONCE)]
    cluster.settle()
    done = cluster.rules.unsigned(Part(3, PartKind.STANDING, NONCE))
    assert [
        m for m in compacted(cluster.logs[0]) if m.body.round == 3 or m.body.kind == Kind.FETCH
    ] == [done]
    for round_ in (2, 3):
        cluster.train(round_)
        cluster.settle()
    assert done in cluster.logs[0]
    assert done not in compacted(cluster.logs[0])
