"""The normal case (section 4.2 of the PBFT paper): a round is closed, voted on and decided."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedrfq.consensus
from fedrfq.consensus.events import Broadcast, Expired, Persist, Received, Send, Timer, Waiting
from fedrfq.consensus.messages import Kind, Message, PartKind, PrePrepare
from support.cluster import Cluster

IMPURE = ("time", "random", "socket", "os", "datetime", "secrets")


def test_standard_library_only() -> None:
    for path in Path(fedrfq.consensus.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                inside = name.startswith("fedrfq.consensus") or name == "fedrfq.errors"
                assert inside or name.split(".")[0] in sys.stdlib_module_names, (
                    f"{path.name} imports {name}"
                )
                assert name.split(".")[0] not in IMPURE, path.name


class TestNormalCase:
    @pytest.mark.parametrize("servers", [1, 4, 5, 6, 7, 10])
    def test_all_decide_the_same_in_view_0_round_after_round(self, servers: int) -> None:
        cluster = Cluster(servers)
        for round_ in (1, 2, 3):
            cluster.train(round_)
            cluster.settle()
            assert cluster.globals_(round_) == dict.fromkeys(range(servers), b"1234" * round_)
        assert all(c.view == 0 for chain in [cluster.parties[0].chain] for c in chain.values())
        assert not any(cluster.accused.values())

    def test_the_leader_is_round_plus_view_mod_n(self) -> None:
        cluster = Cluster()
        for round_ in (1, 2, 3, 4, 5):
            cluster.train(round_)
            cluster.settle()
        led = {
            m.body.round: server
            for server in range(4)
            for m in cluster.said(server, Kind.PREPREPARE)
        }
        assert led == {1: 1, 2: 2, 3: 3, 4: 0, 5: 1}

    @pytest.mark.parametrize(("servers", "quorum"), [(4, 3), (5, 4), (6, 4), (7, 5), (10, 7)])
    def test_one_vote_short_of_a_quorum_commits_and_decides_nothing(
        self, servers: int, quorum: int
    ) -> None:
        """2f+1 is 3 at n = 5 and 6: too few."""
        for kind in (Kind.PREPARE, Kind.COMMIT):
            for heard in (quorum - 1, quorum):
                cluster = Cluster(servers)
                cluster.passes = lambda s, r, m, k=kind, h=heard: (
                    m.body.kind != k or r != 0 or s < h
                )
                cluster.train(1)
                cluster.settle()
                if kind == Kind.COMMIT:
                    assert (1 in cluster.parties[0].chain) == (heard == quorum)
                else:
                    assert bool(cluster.said(0, Kind.COMMIT)) == (heard == quorum)

    def test_the_value_is_the_same_in_every_view_and_chains_to_the_last(self) -> None:
        quiet = Cluster()
        stormy = Cluster()
        stormy.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE or m.view > 0
        for cluster in (quiet, stormy):
            cluster.train(1)
            cluster.settle()
            cluster.expire(Timer.VIEW)
            cluster.settle()
        calm = quiet.parties[0].chain[1]
        later = stormy.parties[0].chain[1]
        assert (calm.view, later.view) == (0, 1)
        assert calm.record == later.record
        cluster.passes = lambda s, r, m: True
        cluster.train(2)
        cluster.settle()
        assert cluster.parties[0].chain[2].record.previous == later.record.value(cluster.rules.run)

    def test_no_vote_without_the_bodies(self) -> None:
        """Server 0 gets no uploads: it must not prepare, but asks for them."""
        cluster = Cluster()
        cluster.passes = lambda s, r, m: not (r == 0 and m.body.kind == Kind.UPLOAD)
        cluster.train(1)
        cluster.settle()
        assert not cluster.said(0, Kind.PREPARE)
        assert 1 in cluster.parties[0].chain  # the others are a quorum
        fetched = [m.body for m in cluster.said(0, Kind.FETCH) if m.body.what == PartKind.UPLOAD]
        assert len(fetched) == 4

    def test_missing_bodies_are_fetched_and_then_voted_on(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: not (r == 0 and s < 0)
        cluster.train(1)
        cluster.settle()
        assert cluster.said(0, Kind.PREPARE)
        assert cluster.globals_(1)[0] == b"1234"

    def test_a_record_that_is_not_what_we_compute_gets_no_vote(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.train(1)
        cluster.settle()
        honest = cluster.said(1, Kind.PREPREPARE)[0].body
        assert isinstance(honest, PrePrepare)
        lie = cluster.say(1, replace(honest, record=replace(honest.record, globals_=bytes(32))))
        for server in (0, 2, 3):
            assert not any(isinstance(e, Persist) for e in cluster.give(server, Received(1, lie)))
        assert not cluster.said(0, Kind.PREPARE)

    def test_a_proposal_of_another_than_the_leader_is_ignored(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.train(1)
        cluster.settle()
        body = cluster.said(1, Kind.PREPREPARE)[0].body
        assert isinstance(body, PrePrepare)
        cluster.give(0, Received(2, cluster.say(2, replace(body, server=2))))
        assert not cluster.said(0, Kind.PREPARE)
        assert cluster.parties[0].ignored["improper proposal"] == 1

    def test_everything_signed_is_durable_before_it_is_sent(self) -> None:
        cluster = Cluster()
        steps: list[list[object]] = []
        give = cluster.give
        cluster.give = lambda party, event: steps.append(out := list(give(party, event))) or out  # type: ignore[method-assign,func-returns-value,return-value]
        cluster.train(1)
        cluster.settle()
        spoken = 0
        for effects in steps:
            stored: set[Message] = set()
            for effect in effects:
                if isinstance(effect, Persist):
                    stored.add(effect.message)
                elif isinstance(effect, Broadcast) and effect.message.signature:
                    assert effect.message in stored
                    spoken += 1
        assert spoken > 12


class TestClosing:
    def test_at_the_deadline_with_the_minimum_else_it_waits_and_says_so(self) -> None:
        cluster = Cluster(minimum=2)
        cluster.train(1, [b"1"])
        cluster.settle()
        effects = cluster.give(0, Expired(Timer.DEADLINE))
        assert [e for e in effects if isinstance(e, Waiting)] == [Waiting(1, 2)]
        assert not cluster.said(0, Kind.LIST)
        cluster.train(1, [None, b"2"])
        cluster.settle()
        assert len(cluster.said(0, Kind.LIST)) == 1
        assert not cluster.said(1, Kind.LIST)  # its own deadline has not come
        cluster.expire(Timer.DEADLINE)
        cluster.settle()
        assert cluster.globals_(1) == dict.fromkeys(range(4), b"12")

    def test_the_set_is_the_union_of_the_lists(self) -> None:
        """Client k is heard by servers k and k+1 alone, f+1 of them: nobody can leave it out."""
        cluster = Cluster()
        cluster.passes = lambda s, r, m: (
            m.body.kind != Kind.UPLOAD or s >= 0 or r in (~s, (~s + 1) % 4)
        )
        cluster.train(1)
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.settle()
        assert cluster.globals_(1) == dict.fromkeys(range(4), b"1234")

    def test_a_receipt_is_a_promise_and_none_is_given_after_closing(self) -> None:
        cluster = Cluster()
        cluster.train(1, [b"1", b"2"])
        cluster.settle()
        cluster.expire(Timer.DEADLINE, 0)
        effects = cluster.give(0, Received(~2, cluster.upload(2, 1, b"3")))
        assert not any(isinstance(e, Send) and e.message.body.kind == Kind.RECEIPT for e in effects)
        again = cluster.give(0, Received(~0, cluster.upload(0, 1, b"1")))
        assert any(isinstance(e, Send) and e.message.body.kind == Kind.RECEIPT for e in again)

    def test_the_view_timer_waits_for_the_lists(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.passes = lambda s, r, m: m.body.kind not in (Kind.LIST, Kind.PREPREPARE)
        cluster.settle()
        assert all(cluster.timers.get((i, Timer.VIEW)) is None for i in range(4))
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.expire(Timer.RESEND)
        cluster.settle()
        assert cluster.timers[0, Timer.VIEW] == cluster.roster.view_ms
