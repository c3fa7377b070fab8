"""Clients: they fetch a round's outcome, resend, and show receipts."""

from __future__ import annotations

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import (
    Decided,
    Effect,
    Expired,
    LeftOut,
    Outcome,
    Persist,
    Received,
    Send,
    SetTimer,
    Start,
    Submit,
    Timer,
)
from fedrfq.consensus.messages import Cert, Fetch, Kind, Message, Part, PartKind, Receipt
from support.cluster import Cluster, key, signer

BOTH = (PartKind.GLOBALS, PartKind.VERDICTS)


def wanting(cluster: Cluster, log: tuple[Message, ...] = ()) -> Client:
    cluster.parties[~0] = Client(cluster.rules, 0, signer(key("client", 0)), log, BOTH)
    return cluster.parties[~0]  # type: ignore[no-any-return]


def fetched(effects: list[Effect]) -> list[tuple[int, PartKind]]:
    return [
        (e.to, e.message.body.what)
        for e in effects
        if isinstance(e, Send) and isinstance(e.message.body, Fetch)
    ]


def test_it_says_so_again_once_all_it_wants_is_there_and_durable() -> None:
    cluster = Cluster()
    wanting(cluster)
    cluster.train(1)
    cluster.settle()
    said = [decided.outcome for decided in cluster.decided[~0]]
    assert said == [None, Outcome(b"1234", b"++++", b"")]
    assert [m.body.kind for m in cluster.logs[~0]] == [Kind.UPLOAD, Kind.CERT, Kind.BODY, Kind.BODY]


def test_it_asks_one_server_after_the_other_and_takes_nothing_else() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: r != ~0
    cluster.train(1)
    cluster.settle()
    client = wanting(cluster)
    certificate = cluster.parties[0].chain[1]
    effects = client.step(Received(2, cluster.rules.unsigned(Cert(1, certificate))))
    assert fetched(effects) == [(2, PartKind.GLOBALS), (2, PartKind.VERDICTS)]
    asked = [fetched(client.step(Expired(Timer.RESEND))) for _ in range(4)]
    assert [{to for to, _ in each} for each in asked] == [{1}, {2}, {3}, {0}]
    assert all([what for _, what in each] == [PartKind.CERT, *BOTH] for each in asked)
    for body in (
        Part(1, PartKind.GLOBALS, b"1235"),
        Part(1, PartKind.VERDICTS, b"1234"),
        Part(1, PartKind.STATE, b"10"),
    ):
        assert client.step(Received(2, cluster.rules.unsigned(body))) == []
    assert client.ignored["nobody asked"] == 3
    effects = client.step(Received(2, cluster.rules.unsigned(Part(9, PartKind.GLOBALS, b"1234"))))
    assert effects == [Persist(cluster.rules.unsigned(Part(1, PartKind.GLOBALS, b"1234")))]
    assert [what for _, what in fetched(client.step(Expired(Timer.RESEND)))] == [
        PartKind.CERT,
        PartKind.VERDICTS,
    ]


def test_after_a_restart_it_asks_for_what_is_still_missing() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: r != ~0
    cluster.train(1)
    cluster.settle()
    certificate = cluster.parties[0].chain[1]
    part = cluster.rules.unsigned(Part(1, PartKind.GLOBALS, b"1234"))
    client = wanting(cluster, (cluster.rules.unsigned(Cert(1, certificate)), part))
    assert [what for _, what in fetched(client.step(Start()))] == [PartKind.CERT, PartKind.VERDICTS]
    effects = client.step(Received(1, cluster.rules.unsigned(Part(1, PartKind.VERDICTS, b"++++"))))
    assert Decided(certificate, Outcome(b"1234", b"++++", b""), ()) in effects


def test_what_nobody_has_any_more_it_does_without() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: r != ~0
    client = wanting(cluster)
    for round_ in (1, 2, 3):
        cluster.train(round_, [None, b"1", b"1", b"1"])
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.settle()
    cluster.give(~0, Received(2, cluster.rules.unsigned(Cert(1, cluster.parties[0].chain[1]))))
    cluster.passes = lambda s, r, m: True
    for _ in range(3):
        cluster.settle()
        cluster.expire(Timer.RESEND, ~0)
    cluster.settle()
    assert client.round == 4
    last = cluster.decided[~0][-1]
    assert last.certificate.record.round == 3
    assert last.outcome is not None


def test_a_client_says_things_again_ever_less_often_until_something_happens() -> None:
    cluster = Cluster(resend_ms=10)
    cluster.passes = lambda sender, receiver, message: False
    waits = []
    for _ in range(6):
        cluster.expire(Timer.RESEND, ~0)
        waits.append(cluster.timers[~0, Timer.RESEND])
    assert waits == [10, 20, 40, 80, 160, 160]
    cluster.train(1)
    assert cluster.timers[~0, Timer.RESEND] == 10
    cluster.expire(Timer.RESEND, ~0)
    cluster.expire(Timer.RESEND, ~0)
    assert cluster.timers[~0, Timer.RESEND] == 20
    cluster.passes = lambda sender, receiver, message: True
    cluster.settle()
    assert cluster.parties[~0].round == 2
    assert cluster.timers[~0, Timer.RESEND] == 10


def test_a_liar_that_gives_receipts_before_all_others_makes_no_client_ask_for_more() -> None:
    cluster = Cluster()
    cluster.passes = lambda sender, receiver, message: (
        message.body.kind != Kind.RECEIPT or sender == 3
    )
    cluster.train(1)
    cluster.settle()
    assert all(list(cluster.parties[~k].promises) == [3] for k in range(4))
    assert not [m for sender, _, m in cluster.sent if sender < 0 and isinstance(m.body, Fetch)]


def test_receipts_of_a_round_that_is_long_over_are_not_shown() -> None:
    """The certificate it hears of first is of the round after the one it has a receipt for."""
    cluster = Cluster()
    cluster.passes = lambda sender, receiver, message: receiver != ~0
    for round_ in (1, 2):
        cluster.train(round_)
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.settle()
    client = wanting(cluster)
    client.step(Submit(1, b"1"))
    assert client.upload is not None
    client.step(Received(3, cluster.say(3, Receipt(1, 3, 0, client.upload.digest))))
    assert list(client.receipts) == [3]
    client.step(Received(2, cluster.rules.unsigned(Cert(2, cluster.parties[0].chain[2]))))
    assert client.step(LeftOut(2)) == client.step(LeftOut(1)) == []


def test_who_tells_of_rounds_in_quick_succession_and_of_nothing_else_does_not_starve_a_client() -> (
    None
):
    cluster = Cluster()
    cluster.passes = lambda sender, receiver, message: receiver != ~0
    for round_ in range(1, 6):
        cluster.train(round_)
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.settle()
    client = wanting(cluster)
    chain = cluster.parties[0].chain
    told = [
        client.step(Received(3, cluster.rules.unsigned(Cert(round_, chain[round_]))))
        for round_ in range(1, 6)
    ]
    assert [{to for to, _ in fetched(effects)} for effects in told] == [
        {3},
        {1, 3},
        {2, 3},
        {3},
        {0, 3},
    ]
    timers = [[effect for effect in effects if isinstance(effect, SetTimer)] for effects in told]
    assert [len(each) for each in timers] == [1, 0, 0, 0, 0]


def shown(cluster: Cluster, clients: range) -> set[int]:
    """Return the clients that have shown receipts."""
    return {
        ~sender
        for sender, _, m in cluster.sent
        if ~sender in clients and isinstance(m.body, Receipt)
    }


def test_where_few_gave_receipts_they_are_shown_in_one_round_of_eight() -> None:
    cluster = Cluster()
    cluster.passes = lambda sender, receiver, message: (
        sender < 0 or message.body.kind != Kind.RECEIPT or sender == 3
    )
    for round_ in range(1, 9):
        cluster.sent.clear()
        cluster.train(round_)
        cluster.settle()
        assert shown(cluster, range(4)) == {k for k in range(4) if (k + round_) % 8 == 0}


def test_where_many_gave_receipts_none_are_shown() -> None:
    cluster = Cluster()
    for round_ in range(1, 9):
        cluster.train(round_)
        cluster.settle()
    assert not shown(cluster, range(4))
