"""Attacks by one faulty server or client that once succeeded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import LeftOut, Outcome, Received, Send, Timer
from fedrfq.consensus.messages import (
    Cert,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    UploadList,
    ViewChange,
)
from support.cluster import Cluster, key, signer


def hoarding(cluster: Cluster) -> ViewChange:
    """Let a faulty server withhold a prepared certificate; return the view change that shows it.

    Round 3 is led by server 3, which is faulty and alone hears client 3. Servers 0 and 1 vote for
    its proposal, but it keeps its own vote, and so the certificate, to itself. In view 1 all
    compute another record, and the votes for it are lost.
    """
    for round_ in (1, 2):
        cluster.train(round_)
        cluster.settle()
    cluster.passes = lambda s, r, m: (
        not (
            (s == ~3 and r != 3)
            # so that server 3 proposes the lists of 0, 1 and 3
            or (s == 2 and r == 3 and m.body.kind == Kind.LIST)
            or (s == 3 and m.body.kind not in (Kind.UPLOAD, Kind.LIST, Kind.PREPREPARE))
            or (s == 3 and r == 2 and m.body.kind == Kind.PREPREPARE)
        )
    )
    cluster.train(3)
    cluster.settle()
    cluster.expire(Timer.DEADLINE)
    cluster.settle()
    hidden = cluster.said(3, Kind.PREPREPARE)[-1].body
    assert isinstance(hidden, PrePrepare)
    vote = cluster.say(3, Prepare(3, 0, hidden.record.value(cluster.rules.run), 3))
    proof = cluster.rules.certificate(
        [vote, *(cluster.said(s, Kind.PREPARE)[-1] for s in (0, 1))], hidden.record
    )
    assert cluster.rules.certifies(proof, Kind.PREPARE)
    cluster.passes = lambda s, r, m: 3 not in (s, r) and m.body.kind != Kind.PREPARE
    cluster.expire(Timer.VIEW, 0, 1, 2)
    cluster.settle()
    other = cluster.said(0, Kind.PREPREPARE)[-1].body
    assert isinstance(other, PrePrepare)
    assert other.view == 1
    assert other.record != hidden.record
    return ViewChange(3, 2, 3, proof, cluster.parties[0].chain[2])


def test_a_certificate_that_only_a_faulty_server_holds_binds_and_the_round_still_ends() -> None:
    """A server that voted hands out the set, although it has computed another since.

    The faulty server does not.
    """
    cluster = Cluster()
    change = cluster.say(3, hoarding(cluster))
    cluster.passes = lambda s, r, m: 3 not in (s, r)
    for server in (0, 1, 2):
        cluster.give(server, Received(3, change))
    cluster.expire(Timer.VIEW, 0, 1, 2)
    cluster.settle()
    for _ in range(3):
        cluster.expire(Timer.RESEND, 0, 1, 2)
        cluster.settle()
    assert change.body.prepared is not None  # type: ignore[union-attr]
    decided = {cluster.parties[s].chain[3].record for s in (0, 1, 2)}
    assert decided == {change.body.prepared.record}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "what", [PartKind.SET, PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE]
)
def test_no_client_gets_the_detectors_state_under_another_name(what: PartKind) -> None:
    cluster = Cluster()
    cluster.train(1)
    cluster.settle()
    state = cluster.parties[0].chain[1].record.state
    effects = cluster.give(0, Received(~0, cluster.rules.unsigned(Fetch(1, what, state))))
    assert not any(isinstance(e, Send) and isinstance(e.message.body, Part) for e in effects)


def test_a_list_that_gives_uploads_to_other_clients_makes_nobody_send_them_around() -> None:
    cluster = Cluster()
    cluster.train(1, [b"1", b"2", b"3"])
    cluster.settle()
    digests = [cluster.upload(c, 1, b"%d" % (c + 1)).digest for c in range(3)]
    lie = cluster.say(3, UploadList(1, 3, tuple((c, digests[c - 1]) for c in range(3))))
    cluster.passes = lambda s, r, m: 3 not in (s, r) and m.body.kind != Kind.PREPREPARE
    cluster.expire(Timer.DEADLINE, 0, 1, 2)
    for server in (0, 1, 2):
        cluster.give(server, Received(3, lie))
    cluster.settle()
    cluster.sent.clear()
    cluster.expire(Timer.RESEND, 0, 1, 2)
    cluster.settle()
    assert not [m for s, _, m in cluster.sent if s >= 0 and m.body.kind == Kind.UPLOAD]
    assert not any(cluster.parties[s].requests.wanted for s in (0, 1, 2))


def test_after_its_deadline_a_server_with_too_few_uploads_fetches_what_others_list() -> None:
    """Client 2 reaches servers 1 and 2 only; server 3 is silent, so that server 0 is needed."""
    cluster = Cluster(minimum=3)
    cluster.passes = lambda s, r, m: 3 not in (s, r) and not (s == ~2 and r == 0)
    cluster.train(1, [b"1", b"2", b"3"])
    cluster.settle()
    cluster.expire(Timer.DEADLINE, 0, 1, 2)
    cluster.settle()
    cluster.expire(Timer.RESEND, 0, 1, 2)
    cluster.settle()
    assert cluster.globals_(1) == dict.fromkeys((0, 1, 2), b"123")


def test_who_hands_out_the_certificate_first_cannot_keep_the_verdicts_from_a_client_left_out() -> (
    None
):
    """Server 2 breaks its promise, and is the first to tell the client of the decision.

    From then on it is silent.
    """
    cluster = Cluster()
    cluster.parties[~3] = Client(
        cluster.rules, 3, signer(key("client", 3)), (), (PartKind.VERDICTS,)
    )
    entries = tuple((c, cluster.upload(c, 1, b"%d" % (c + 1)).digest) for c in range(3))
    cluster.passes = lambda s, r, m: (
        not (
            (s == 2 and isinstance(m.body, UploadList) and m.body.entries != entries)
            or (s == 2 and isinstance(m.body, Evidence))
            or (s == ~3 and r != 2 and m.body.kind == Kind.UPLOAD)
            or (r == ~3 and isinstance(m.body, Cert))
        )
    )
    cluster.train(1)
    for server in (0, 1, 3):
        cluster.queue.append((2, server, cluster.say(2, UploadList(1, 2, entries))))
    cluster.settle()
    cluster.expire(Timer.DEADLINE)
    cluster.settle()
    assert cluster.globals_(1)[0] == b"123"
    cluster.passes = lambda s, r, m: s != 2
    cluster.give(~3, Received(2, cluster.rules.unsigned(Cert(1, cluster.parties[0].chain[1]))))
    cluster.settle()
    for _ in range(4):
        cluster.expire(Timer.RESEND, ~3)
        cluster.settle()
    assert cluster.decided[~3][-1].outcome == Outcome(b"", b"+++", b"")
    cluster.give(~3, LeftOut(1))
    cluster.settle()
    for server in (0, 1, 3):
        shown = [m.body.first for m in cluster.accused[server] if isinstance(m.body, Evidence)]
        assert [(m.body.kind, m.server) for m in shown] == [(Kind.RECEIPT, 2)]


def test_an_outcome_that_was_told_is_there_after_a_restart_although_it_never_voted_for_it() -> None:
    """Server 0 computes the outcome although its leader lies about the result.

    Then it is shown the others' certificate.
    """
    cluster = Cluster()
    cluster.passes = lambda s, r, m: m.body.kind != Kind.PREPREPARE
    cluster.train(1)
    cluster.settle()
    right = cluster.said(1, Kind.PREPREPARE)[0]
    assert isinstance(right.body, PrePrepare)
    wrong = replace(right.body, record=replace(right.body.record, globals_=bytes(32)))
    cluster.give(0, Received(1, cluster.say(1, wrong)))
    cluster.passes = lambda s, r, m: 0 not in (s, r)
    for server in (2, 3):
        cluster.give(server, Received(1, right))
    cluster.settle()
    cluster.give(0, Received(2, cluster.rules.unsigned(Cert(1, cluster.parties[2].chain[1]))))
    assert cluster.decided[0][0].outcome is not None
    cluster.restart(0)
    assert cluster.parties[0].outcome == cluster.decided[0][0].outcome


def test_evidence_of_the_last_round_survives_a_restart() -> None:
    cluster = Cluster()
    cluster.train(1)
    cluster.settle()
    votes = [cluster.say(3, Prepare(1, 9, value * 32, 3)) for value in (b"a", b"b")]
    evidence = cluster.rules.unsigned(Evidence(1, votes[0], votes[1]))
    cluster.give(0, Received(1, evidence))
    cluster.restart(0)
    cluster.give(0, Received(1, evidence))
    assert len(cluster.accused[0]) == 1


def test_a_server_whose_silence_ends_after_its_deadline_still_closes_the_round() -> None:
    cluster = Cluster(servers=7, minimum=2)
    lost = b"n" * 32

    def standing(sender: int, message: Message) -> bool:
        return (
            sender == 5
            and isinstance(message.body, Part)
            and message.body.what == PartKind.STANDING
        )

    cluster.passes = lambda sender, receiver, message: (
        6 not in (sender, receiver) and not standing(sender, message)
    )
    for round_ in (1, 2):
        cluster.train(round_)
        cluster.settle()
    cluster.expire(Timer.RESEND)
    cluster.settle()
    cluster.lose(0, lost)
    cluster.settle()
    for round_ in (3, 4, 5):
        cluster.train(round_)
        _pass_time(cluster, range(1, 6))
    rejoined = cluster.parties[0]
    assert (rejoined.round, rejoined.silent) == (6, True)
    cluster.passes = lambda sender, receiver, message: (
        not {1, 6} & {sender, receiver}
        and not standing(sender, message)
        and not (sender < 0 and receiver == 0)
    )
    cluster.train(6, [b"1", b"2", None, None])
    cluster.settle()
    for server in (2, 3, 4, 5, 0):
        cluster.expire(Timer.DEADLINE, server)
        cluster.settle()
    cluster.give(0, Received(6, cluster.rules.unsigned(Part(0, PartKind.STANDING, lost))))
    assert not rejoined.silent
    cluster.passes = lambda sender, receiver, message: (
        min(sender, receiver) >= 0 and not {1, 6} & {sender, receiver}
    )
    _pass_time(cluster, (0, 2, 3, 4, 5))
    assert [cluster.parties[server].round for server in (0, 2, 3, 4, 5)] == [7] * 5


def _pass_time(cluster: Cluster, servers: Iterable[int]) -> None:
    for _ in range(6):
        cluster.settle()
        for server in servers:
            cluster.expire(Timer.RESEND, server)
            if cluster.parties[server].state.timing:
                cluster.expire(Timer.VIEW, server)
        cluster.settle()
