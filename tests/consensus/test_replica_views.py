"""View changes (section 4.4 of the PBFT paper) and recovery: leaders and servers fail."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Expired, Received, Timer
from fedrfq.consensus.messages import Cert, Kind, Part, PartKind, PrePrepare, ViewChange, unsigned
from support.cluster import Cluster, Filter, among

NO_COMMITS: Filter = lambda sender, receiver, message: message.body.kind != Kind.COMMIT  # noqa: E731


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
        """All commit, but only one hears it; then the new leader must propose the same record."""
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

    def test_the_set_of_a_carried_record_is_fetched_by_who_never_saw_the_first_proposal(
        self,
    ) -> None:
        cluster = Cluster()
        cluster.passes = lambda s, r, m: (
            m.body.kind != Kind.COMMIT and not (r == 3 and m.body.kind == Kind.PREPREPARE)
        )
        cluster.train(1)
        cluster.settle()
        cluster.passes = lambda s, r, m: 1 not in (s, r)
        cluster.expire(Timer.VIEW, 0, 2, 3)
        cluster.settle()
        assert any(m.body.what == PartKind.SET for m in cluster.said(3, Kind.FETCH))  # type: ignore[union-attr]
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
        free = cluster.say(
            2, replace(new, record=replace(old.record, state=bytes(32)), lists=old.lists)
        )
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
        assert [m.view for m in cluster.parties[0].view_changes.changes.values()] == [9]


class TestRecovery:
    def test_a_restarted_server_says_the_same_again_and_nothing_else(self) -> None:
        """Servers that are restarted over and over sign one LIST, and one vote of a kind a view."""
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
        cluster.give(
            0,
            Received(
                2,
                cluster.say(2, ViewChange(1, 1, 2, cluster.parties[2].certificates.prepared, None)),
            ),
        )
        cluster.give(
            0,
            Received(
                3,
                cluster.say(3, ViewChange(1, 1, 3, cluster.parties[3].certificates.prepared, None)),
            ),
        )
        cluster.settle()
        assert cluster.globals_(1) == dict.fromkeys((0, 2, 3), b"1234")

    def test_a_log_may_begin_with_a_certificate(self) -> None:
        cluster = Cluster()
        for round_ in (1, 2):
            cluster.train(round_)
            cluster.settle()
        certificate = cluster.parties[0].chain[2]
        parts = [m for m in cluster.logs[0] if isinstance(m.body, Part) and m.body.round == 2]
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
        prepared = cluster.parties[2].certificates.prepared
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
