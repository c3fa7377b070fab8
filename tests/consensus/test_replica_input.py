"""What others send a replica: what counts, what is evidence against them, what is ignored."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Expired, LeftOut, Received, Send, SetTimer, Timer
from fedrfq.consensus.messages import (
    Commit,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    Receipt,
    UploadList,
    ViewChange,
    unsigned,
)
from support.cluster import Cluster


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
        assert len(cluster.parties[0].upload_pool.messages) == 2

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
            cluster.give(server, Received(2, cluster.say(2, UploadList(1, 2, entries))))
        cluster.settle()
        receipt = cluster.say(2, Receipt(1, 2, 3, left_out.digest))
        cluster.give(0, Received(~3, receipt))
        convicted = cluster.accused[0][0].body
        assert isinstance(convicted, Evidence)
        assert cluster.rules.proves(convicted)
        assert convicted.first.server == 2

    def test_a_client_left_out_shows_its_receipts(self) -> None:
        """Server 2 gives client 3 a receipt and does not list its upload.

        The client is told that it was left out, and shows the receipt, once.
        """
        cluster = Cluster()
        entries = tuple(sorted((c, cluster.upload(c, 1, b"%d" % (c + 1)).digest) for c in range(3)))
        cluster.passes = lambda s, r, m: (
            not (s == 2 and isinstance(m.body, UploadList) and m.body.entries != entries)
            # our server 2 is honest, and finds two lists of its own
            and not (s == 2 and isinstance(m.body, Evidence))
            and not (s == ~3 and r != 2 and m.body.kind == Kind.UPLOAD)
        )
        cluster.train(1)
        for server in (0, 1, 3):
            cluster.queue.append((2, server, cluster.say(2, UploadList(1, 2, entries))))
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
            PartKind.GLOBALS: record.globals_,
            PartKind.SET: record.set_,
            PartKind.VERDICTS: record.verdicts,
            PartKind.STATE: record.state,
        }
        for what, digest in asked.items():
            effects = cluster.give(
                0, Received(~0, unsigned(cluster.rules.run, Fetch(1, what, digest)))
            )
            assert bool(effects) == (what != PartKind.STATE)
        cluster.train(2, [b"1", b"2"])
        cluster.settle()
        digest = cluster.upload(1, 2, b"2").digest
        fetch = unsigned(cluster.rules.run, Fetch(2, PartKind.UPLOAD, digest))
        assert not cluster.give(0, Received(~0, fetch))
        assert cluster.give(0, Received(1, fetch))

    def test_a_client_signs_once_a_round_and_sends_the_same_again_after_a_restart(self) -> None:
        cluster = Cluster()
        cluster.train(1, [b"1"])
        cluster.train(1, [b"9"])
        uploads = cluster.said(~0, Kind.UPLOAD)
        assert [m.body.content for m in uploads] == [b"1"]  # type: ignore[union-attr]
        client = type(cluster.parties[~0])(
            cluster.rules, 0, lambda data: b"another signature", cluster.logs[~0]
        )
        sent = [e.message for e in client.step(Expired(Timer.RESEND)) if isinstance(e, Send)]
        assert {m for m in sent if m.body.kind == Kind.UPLOAD} == set(uploads)


class TestBadInput:
    def test_foreign_messages_are_ignored_and_counted(self) -> None:
        cluster = Cluster()
        replica = cluster.parties[0]
        vote = Prepare(1, 0, bytes(32), 2)
        signed = cluster.say(2, vote)
        other = Cluster(minimum=2)
        lists = [cluster.say(2, UploadList(1, 2, ((9, bytes([n]) * 32),))) for n in range(2)]
        improper = Evidence(1, lists[0], lists[1])
        cases = {
            "another run": other.say(2, vote),
            "unknown party": cluster.say(2, replace(vote, server=9)),
            "bad signature": Message(signed.run, ViewChange(1, 1, 2, None, None), None, bytes(64)),
            "improper list": cluster.say(2, UploadList(1, 2, ())),
            "improper view change": cluster.say(2, ViewChange(1, 0, 2, None, None)),
            "evidence that proves nothing": unsigned(
                cluster.rules.run, Evidence(1, signed, signed)
            ),
            "evidence of improper messages": unsigned(cluster.rules.run, improper),
            "improper early message": cluster.say(2, UploadList(2, 2, ())),
            "nobody asked": unsigned(cluster.rules.run, Part(1, PartKind.GLOBALS, b"x")),
            "not to be had": unsigned(cluster.rules.run, Fetch(1, PartKind.CERT)),
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
        assert [m.value for m in cluster.parties[0].votes.commits.values()] == [bytes(32)]
        assert len(cluster.accused[0]) == 1

    def test_what_is_set_aside_for_the_next_round_is_bounded(self) -> None:
        cluster = Cluster()
        for number in range(50):
            cluster.give(0, Received(2, cluster.say(2, Commit(2, number, bytes(32), 2))))
            cluster.give(0, Received(~1, cluster.upload(1, 2, b"%d" % number)))
        assert len(cluster.parties[0].early.kept) == 3

    def test_far_ahead_is_asked_about_once(self) -> None:
        cluster = Cluster()
        asked = 0
        for number in range(10):
            effects = cluster.give(
                0, Received(2, cluster.say(2, Commit(50 + number, 0, bytes(32), 2)))
            )
            asked += sum(isinstance(e, Send) for e in effects)
        assert asked == 1

    def test_timers_restart_with_the_round(self) -> None:
        cluster = Cluster()
        cluster.train(1)
        cluster.settle()
        effects = cluster.give(0, Expired(Timer.VIEW))  # of a round that is over
        assert not any(isinstance(e, SetTimer) for e in effects)
        assert cluster.parties[0].view == 0
