"""The replica, case by case, in the order of Castro and Liskov's paper: normal operation, view changes, recovery."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import Cluster, Filter, among

import fedrfq.consensus
from fedrfq.consensus.machine import Broadcast, Expired, LeftOut, Persist, Received, Send, SetTimer, Timer, Waiting
from fedrfq.consensus.messages import (
    Body,
    Cert,
    Commit,
    Evidence,
    Fetch,
    Kind,
    List,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    ViewChange,
    What,
    unsigned,
)

NO_COMMITS: Filter = lambda sender, receiver, message: message.body.kind != Kind.COMMIT  # noqa: E731


def test_standard_library_only() -> None:
    for path in Path(fedrfq.consensus.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                inside = name.startswith("fedrfq.consensus") or name == "fedrfq.errors"
                assert inside or name.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"
                assert name.split(".")[0] not in ("time", "random", "socket", "os", "datetime", "secrets"), path.name


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
        led = {m.body.round: server for server in range(4) for m in cluster.said(server, Kind.PREPREPARE)}
        assert led == {1: 1, 2: 2, 3: 3, 4: 0, 5: 1}

    @pytest.mark.parametrize(("servers", "quorum"), [(4, 3), (5, 4), (6, 4), (7, 5), (10, 7)])
    def test_one_vote_short_of_a_quorum_commits_and_decides_nothing(self, servers: int, quorum: int) -> None:
        """2f+1 is 3 at n = 5 and 6: too few."""
        for kind in (Kind.PREPARE, Kind.COMMIT):
            for heard in (quorum - 1, quorum):
                cluster = Cluster(servers)
                cluster.passes = lambda s, r, m, k=kind, h=heard: m.body.kind != k or r != 0 or s < h
                cluster.train(1)
                cluster.settle()
                if kind == Kind.COMMIT:
                    assert (1 in cluster.parties[0].chain) == (heard == quorum)
                else:
                    assert bool(cluster.said(0, Kind.COMMIT)) == (heard == quorum)

    def test_the_value_is_the_same_in_every_view_and_chains_to_the_last(self) -> None:
        quiet, stormy = Cluster(), Cluster()
        stormy.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE or m.view > 0
        for cluster in (quiet, stormy):
            cluster.train(1)
            cluster.settle()
            cluster.expire(Timer.VIEW)
            cluster.settle()
        calm, later = quiet.parties[0].chain[1], stormy.parties[0].chain[1]
        assert (calm.view, later.view) == (0, 1)
        assert calm.record == later.record
        cluster.passes = lambda s, r, m: True
        cluster.train(2)
        cluster.settle()
        assert cluster.parties[0].chain[2].record.previous == later.record.value(cluster.rules.run)

    def test_no_vote_without_the_bodies(self) -> None:
        """Server 0 hears no client and gets no answer: it must not prepare, and does once it is told what it lacks."""
        cluster = Cluster()
        cluster.passes = lambda s, r, m: not (r == 0 and m.body.kind == Kind.UPLOAD)
        cluster.train(1)
        cluster.settle()
        assert not cluster.said(0, Kind.PREPARE)
        assert 1 in cluster.parties[0].chain  # the others are a quorum
        fetched = [m.body for m in cluster.said(0, Kind.FETCH) if m.body.what == What.UPLOAD]
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
        cluster.passes = lambda s, r, m: m.body.kind != Kind.UPLOAD or s >= 0 or r in (~s, (~s + 1) % 4)
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


class TestClients:
    def test_two_uploads_of_one_client_neither_counts_and_they_are_evidence(self) -> None:
        cluster = Cluster()
        cluster.train(1, [b"1", b"2", b"3"])
        for server in range(4):
            cluster.give(server, Received(~3, cluster.upload(3, 1, b"8" if server < 2 else b"9")))
        cluster.settle()
        assert cluster.globals_(1) == dict.fromkeys(range(4), b"123")
        for server in range(4):
            found = [m.body for m in cluster.accused[server]]
            assert [b.first.body.client for b in found if isinstance(b, Evidence)] == [3]  # type: ignore[union-attr]

    def test_a_second_upload_known_only_locally_is_evidence_and_no_reason_to_refuse(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.passes = lambda s, r, m: m.body.kind != Kind.LIST
        cluster.settle()
        cluster.give(0, Received(~3, cluster.upload(3, 1, b"9")))
        cluster.passes = lambda s, r, m: True
        cluster.expire(Timer.RESEND)
        cluster.settle()
        assert cluster.globals_(1) == dict.fromkeys(range(4), b"1234")
        assert all(len(cluster.accused[server]) == 1 for server in range(4))

    def test_at_most_two_uploads_of_a_client_are_kept(self) -> None:
        cluster = Cluster()
        for content in (b"7", b"8", b"9", b"10"):
            cluster.give(0, Received(~3, cluster.upload(3, 1, content)))
        assert len(cluster.parties[0].holdings.uploads) == 2

    def test_an_inadmissible_upload_is_not_stored(self) -> None:
        cluster = Cluster()
        effects = cluster.give(0, Received(~3, cluster.upload(3, 1, b"a lie")))
        assert not effects
        assert cluster.parties[0].ignored["inadmissible upload"] == 1

    def test_a_list_that_breaks_a_receipt_convicts_its_server(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        left_out = cluster.upload(3, 1, b"4")
        entries = tuple(sorted((c, cluster.upload(c, 1, b"%d" % (c + 1)).digest) for c in range(3)))
        cluster.passes = lambda s, r, m: not (s == 2 and m.body.kind == Kind.LIST)
        for server in (0, 1, 3):
            cluster.give(server, Received(2, cluster.say(2, List(1, 2, entries))))
        cluster.settle()
        receipt = cluster.say(2, Receipt(1, 2, 3, left_out.digest))
        cluster.give(0, Received(~3, receipt))
        convicted = cluster.accused[0][0].body
        assert isinstance(convicted, Evidence)
        assert cluster.rules.proves(convicted)
        assert convicted.first.server == 2

    def test_a_client_left_out_shows_its_receipts(self) -> None:
        """Server 2 gives a receipt and lists others; the client is told that the set is without it, and complains, once."""
        cluster = Cluster()
        entries = tuple(sorted((c, cluster.upload(c, 1, b"%d" % (c + 1)).digest) for c in range(3)))
        cluster.passes = lambda s, r, m: (
            not (s == 2 and isinstance(m.body, List) and m.body.entries != entries)
            and not (s == 2 and isinstance(m.body, Evidence))  # our server 2 is honest, and finds two lists of its own
            and not (s == ~3 and r != 2 and m.body.kind == Kind.UPLOAD)
        )
        cluster.train(1)
        for server in (0, 1, 3):
            cluster.queue.append((2, server, cluster.say(2, List(1, 2, entries))))
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.settle()
        assert cluster.globals_(1)[0] == b"123"
        assert cluster.give(~3, LeftOut(2)) == []
        assert [type(effect) for effect in cluster.give(~3, LeftOut(1))] == [Broadcast]
        assert cluster.give(~3, LeftOut(1)) == []
        cluster.settle()
        for server in (0, 1, 3):
            shown = [m.body.first for m in cluster.accused[server] if isinstance(m.body, Evidence)]
            assert [(m.body.kind, m.server) for m in shown] == [(Kind.RECEIPT, 2)]

    def test_clients_fetch_results_but_never_another_clients_upload(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.settle()
        record = cluster.parties[0].chain[1].record
        asked = {
            What.GLOBALS: record.globals_,
            What.SET: record.set_,
            What.VERDICTS: record.verdicts,
            What.STATE: record.state,
        }
        for what, digest in asked.items():
            effects = cluster.give(0, Received(~0, unsigned(cluster.rules.run, Fetch(1, what, digest))))
            assert bool(effects) == (what != What.STATE)
        cluster.train(2, [b"1", b"2"])
        cluster.settle()
        digest = cluster.upload(1, 2, b"2").digest
        fetch = unsigned(cluster.rules.run, Fetch(2, What.UPLOAD, digest))
        assert not cluster.give(0, Received(~0, fetch))
        assert cluster.give(0, Received(1, fetch))

    def test_a_client_signs_once_a_round_and_sends_the_same_again_after_a_restart(self) -> None:
        cluster = Cluster()
        cluster.train(1, [b"1"])
        cluster.train(1, [b"9"])
        uploads = cluster.said(~0, Kind.UPLOAD)
        assert [m.body.content for m in uploads] == [b"1"]  # type: ignore[union-attr]
        client = type(cluster.parties[~0])(cluster.rules, 0, lambda data: b"another signature", cluster.logs[~0])
        sent = [e.message for e in client.step(Expired(Timer.RESEND)) if isinstance(e, Send)]
        assert {m for m in sent if m.body.kind == Kind.UPLOAD} == set(uploads)


class TestViewChange:
    def test_a_silent_leader_is_replaced(self) -> None:
        cluster = Cluster()
        cluster.passes = among(0, 2, 3)
        cluster.train(1)
        cluster.settle()
        cluster.expire(Timer.VIEW, 0, 2, 3)
        cluster.settle()
        assert cluster.parties[0].chain[1].view == 1
        assert cluster.globals_(1) == dict.fromkeys((0, 2, 3), b"1234")

    def test_timeouts_double_and_are_capped(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.train(1)
        cluster.settle()
        delays = []
        for _ in range(9):
            delays.append(cluster.timers[0, Timer.VIEW])
            cluster.expire(Timer.VIEW)
            cluster.settle()
        base = cluster.roster.view_ms
        assert delays == [base << min(view, 6) for view in range(9)]

    def test_a_server_alone_does_not_run_ahead(self) -> None:
        """Its next view's timer starts only when a quorum has come along."""
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.train(1)
        cluster.settle()
        cluster.expire(Timer.VIEW, 0)
        cluster.settle()
        assert cluster.timers[0, Timer.VIEW] is None
        assert cluster.parties[0].view == 1
        assert [cluster.parties[i].view for i in (1, 2, 3)] == [0, 0, 0]

    def test_f_plus_1_make_the_others_join_the_view_one_honest_server_is_in(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.train(1)
        cluster.settle()
        cluster.give(3, Received(2, cluster.say(2, ViewChange(1, 2**31, 2, None, None))))
        assert cluster.parties[3].view == 0
        cluster.give(3, Received(0, cluster.say(0, ViewChange(1, 4, 0, None, None))))
        assert cluster.parties[3].view == 4

    def test_what_one_server_may_have_decided_is_carried_over(self) -> None:
        """All commit, one hears it; then the leader goes, and the new one must propose the same record."""
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.COMMIT or r == 3
        cluster.train(1)
        cluster.settle()
        assert [1 in cluster.parties[i].chain for i in range(4)] == [False, False, False, True]
        cluster.passes = among(0, 1, 2)
        cluster.expire(Timer.VIEW, 0, 1, 2)
        cluster.settle()
        chains = [cluster.parties[i].chain[1] for i in range(4)]
        assert [c.view for c in chains] == [1, 1, 1, 0]
        assert len({c.record for c in chains}) == 1
        proposal = cluster.said(2, Kind.PREPREPARE)[0].body
        assert isinstance(proposal, PrePrepare)
        assert not proposal.lists
        assert len(proposal.changes) >= 3

    def test_the_set_of_a_carried_record_is_fetched_by_who_never_saw_the_first_proposal(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.COMMIT and not (r == 3 and m.body.kind == Kind.PREPREPARE)
        cluster.train(1)
        cluster.settle()
        cluster.passes = lambda s, r, m: 1 not in (s, r)
        cluster.expire(Timer.VIEW, 0, 2, 3)
        cluster.settle()
        assert any(m.body.what == What.SET for m in cluster.said(3, Kind.FETCH))  # type: ignore[union-attr]
        assert cluster.globals_(1)[3] == b"1234"

    def test_a_new_view_without_what_is_prepared_gets_no_vote(self) -> None:
        cluster = Cluster()
        cluster.passes = NO_COMMITS
        cluster.train(1)
        cluster.settle()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.expire(Timer.VIEW)
        cluster.settle()
        old = cluster.said(1, Kind.PREPREPARE)[0].body
        new = cluster.said(2, Kind.PREPREPARE)[0].body
        assert isinstance(old, PrePrepare)
        assert isinstance(new, PrePrepare)
        free = cluster.say(2, replace(new, record=replace(old.record, state=bytes(32)), lists=old.lists))
        before = len(cluster.said(0, Kind.PREPARE))
        cluster.give(0, Received(2, free))
        assert len(cluster.said(0, Kind.PREPARE)) == before
        cluster.give(0, Received(2, cluster.say(2, new)))
        assert len(cluster.said(0, Kind.PREPARE)) == before + 1

    def test_no_vote_in_a_view_it_has_left(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
        cluster.train(1)
        cluster.settle()
        cluster.give(0, Expired(Timer.VIEW))
        cluster.give(0, Received(1, cluster.said(1, Kind.PREPREPARE)[0]))
        assert not cluster.said(0, Kind.PREPARE)
        assert cluster.parties[0].ignored["old view"] == 1

    def test_of_each_sender_the_highest_view_change_is_kept_and_no_other(self) -> None:
        cluster = Cluster()
        for view in (5, 3, 9, 9, 7):
            cluster.give(0, Received(2, cluster.say(2, ViewChange(1, view, 2, None, None))))
        assert [m.view for m in cluster.parties[0].changes.values()] == [9]


class TestRecovery:
    def test_a_restarted_server_says_the_same_again_and_nothing_else(self) -> None:
        """Killed after every message it persisted, it ends with one LIST, one vote a view of each kind."""
        cluster = Cluster()
        cluster.train(1)
        delivered = 0
        while cluster.queue:
            sender, receiver, message = cluster.queue.popleft()
            cluster.give(receiver, Received(sender, message))
            delivered += 1
            if delivered % 3 == 0 and delivered < 150:
                cluster.restart(delivered % 4)
        cluster.settle()
        for server in range(4):
            for kind in (Kind.LIST, Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT):
                first_round = [m for m in cluster.said(server, kind) if m.body.round == 1]
                assert len(first_round) == len({m.view for m in first_round})
        assert len(set(cluster.globals_(1).values())) == 1

    def test_what_it_prepared_survives(self) -> None:
        cluster = Cluster()
        cluster.passes = NO_COMMITS
        cluster.train(1)
        cluster.settle()
        cluster.restart(0)
        cluster.give(0, Received(2, cluster.say(2, ViewChange(1, 1, 2, None, None))))
        cluster.give(0, Received(3, cluster.say(3, ViewChange(1, 1, 3, None, None))))
        change = cluster.said(0, Kind.VIEWCHANGE)[0].body
        assert isinstance(change, ViewChange)
        assert change.prepared is not None
        assert cluster.rules.certifies(change.prepared, Kind.PREPARE)

    def test_all_restart_after_preparing_and_the_round_still_ends_the_same(self) -> None:
        cluster = Cluster()
        cluster.passes = NO_COMMITS
        cluster.train(1)
        cluster.settle()
        for server in range(4):
            cluster.restart(server)
        cluster.settle()
        cluster.passes = among(0, 2, 3)
        cluster.expire(Timer.RESEND)
        cluster.settle()
        cluster.give(0, Received(2, cluster.say(2, ViewChange(1, 1, 2, cluster.parties[2].prepared, None))))
        cluster.give(0, Received(3, cluster.say(3, ViewChange(1, 1, 3, cluster.parties[3].prepared, None))))
        cluster.settle()
        assert cluster.globals_(1) == dict.fromkeys((0, 2, 3), b"1234")

    def test_a_log_may_begin_with_a_certificate(self) -> None:
        cluster = Cluster()
        for round_ in (1, 2):
            cluster.train(round_)
            cluster.settle()
        certificate = cluster.parties[0].chain[2]
        parts = [m for m in cluster.logs[0] if isinstance(m.body, Body) and m.body.round == 2]
        cluster.logs[0] = [unsigned(cluster.rules.run, Cert(2, certificate)), *parts]
        cluster.restart(0)
        assert cluster.parties[0].round == 3
        cluster.train(3)
        cluster.settle()
        assert cluster.globals_(3) == dict.fromkeys(range(4), b"1234" * 3)

    def test_a_server_that_fell_behind_catches_up_by_certificates(self) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: 0 not in (s, r)
        for round_ in (1, 2, 3, 4):
            cluster.train(round_)
            cluster.settle()
            if round_ == 4:  # whose leader is server 0
                cluster.expire(Timer.VIEW, 1, 2, 3)
                cluster.settle()
        assert cluster.parties[0].round == 1
        cluster.passes = lambda s, r, m: True
        cluster.expire(Timer.RESEND, 0)
        cluster.settle()
        cluster.train(5)
        cluster.settle()
        cluster.expire(Timer.RESEND)
        cluster.settle()
        assert cluster.globals_(5)[0] == b"1234" * 5
        chains = [[c.record for c in cluster.parties[i].chain.values()] for i in range(4)]
        assert chains[0] == chains[1]

    def test_a_forged_certificate_moves_nobody(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.passes = NO_COMMITS
        cluster.settle()
        prepared = cluster.parties[2].prepared
        assert prepared is not None
        for forged in (
            replace(prepared, phase=Kind.COMMIT),
            prepared,
            replace(prepared, phase=Kind.COMMIT, signatures=prepared.signatures[:1] * 3),
        ):
            cluster.give(0, Received(2, unsigned(cluster.rules.run, Cert(1, forged))))
        assert cluster.parties[0].round == 1
        assert cluster.parties[0].ignored["bad certificate"] == 3

    def test_a_message_of_the_next_round_waits_for_it(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.passes = lambda s, r, m: r != 0 or m.body.kind != Kind.COMMIT or m.body.round > 1
        cluster.settle()
        assert cluster.parties[0].round == 1
        cluster.train(2)
        cluster.settle()
        cluster.passes = lambda s, r, m: True
        cluster.expire(Timer.RESEND, 0)
        cluster.settle()
        assert cluster.parties[0].round == 3
        assert cluster.globals_(2)[0] == b"1234" * 2


class TestBadInput:
    def test_foreign_messages_are_ignored_and_counted(self) -> None:
        cluster = Cluster()
        replica = cluster.parties[0]
        vote = Prepare(1, 0, bytes(32), 2)
        signed = cluster.say(2, vote)
        other = Cluster(minimum=2)
        cases = {
            "another run": other.say(2, vote),
            "unknown party": cluster.say(2, replace(vote, server=9)),
            "bad signature": Message(signed.run, signed.body, signed.raw, bytes(64)),
            "improper list": cluster.say(2, List(1, 2, ())),
            "improper view change": cluster.say(2, ViewChange(1, 0, 2, None, None)),
            "evidence that proves nothing": unsigned(cluster.rules.run, Evidence(1, signed, signed)),
            "evidence of another round": unsigned(cluster.rules.run, Evidence(7, signed, signed)),
            "nobody asked": unsigned(cluster.rules.run, Body(1, What.GLOBALS, b"x")),
            "not to be had": unsigned(cluster.rules.run, Fetch(1, What.CERT)),
        }
        for reason, message in cases.items():
            assert not cluster.give(0, Received(2, message)), reason
            assert replica.ignored == {reason: 1}, reason
            replica.ignored.clear()

    def test_old_rounds_are_ignored_and_whoever_is_behind_gets_the_certificate(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.settle()
        vote = cluster.said(2, Kind.COMMIT)[0]
        assert not cluster.give(0, Received(2, vote))
        effects = cluster.give(0, Received(2, cluster.said(2, Kind.LIST)[0]))
        assert [e.message.body.kind for e in effects if isinstance(e, Send)] == [Kind.CERT]
        assert cluster.parties[0].ignored["old round"] >= 2

    def test_two_votes_of_one_view_are_evidence_and_the_first_counts(self) -> None:
        cluster = Cluster()
        for value in (bytes(32), b"\1" * 32, b"\2" * 32):
            cluster.give(0, Received(2, cluster.say(2, Commit(1, 0, value, 2))))
        assert [m.value for m in cluster.parties[0].commits.values()] == [bytes(32)]
        assert len(cluster.accused[0]) == 1

    def test_what_is_set_aside_for_the_next_round_is_bounded(self) -> None:
        cluster = Cluster()
        for number in range(50):
            cluster.give(0, Received(2, cluster.say(2, Commit(2, number, bytes(32), 2))))
            cluster.give(0, Received(~1, cluster.upload(1, 2, b"%d" % number)))
        assert len(cluster.parties[0].early) == 3

    def test_far_ahead_is_asked_about_once(self) -> None:
        cluster = Cluster()
        asked = 0
        for number in range(10):
            effects = cluster.give(0, Received(2, cluster.say(2, Commit(50 + number, 0, bytes(32), 2))))
            asked += sum(isinstance(e, Send) for e in effects)
        assert asked == 1

    def test_timers_restart_with_the_round(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.settle()
        effects = cluster.give(0, Expired(Timer.VIEW))  # of a round that is over
        assert not any(isinstance(e, SetTimer) for e in effects)
        assert cluster.parties[0].view == 0
