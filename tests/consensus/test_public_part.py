"""The public part of an outcome: it is long and changes seldom, so it is stored and sent once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Outcome, Received, Start, Timer
from fedrfq.consensus.messages import (
    Cert,
    Fetch,
    Message,
    Part,
    PartKind,
    PrePrepare,
    Record,
    Upload,
    UploadList,
)
from fedrfq.consensus.replica import Replica
from support import cluster as clusters
from support.cluster import Cluster, among, key, signer

NONCE = bytes(range(32))
WANTS = (PartKind.GLOBALS, PartKind.VERDICTS, PartKind.PUBLIC)


class PublicSums(clusters.Sums):
    """Sums whose public part is set in rounds 1 and 4, and stays in the others."""

    def __init__(self, inherited: bytes = b"") -> None:
        self.inherited = inherited

    def start(self) -> Outcome:
        return super().start()._replace(public=self.inherited)

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        public = before.public
        if round_ in (1, 4):
            public = f"public {round_}".encode()
        return super().decide(round_, before, uploads)._replace(public=public)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster in which client 0 wants all that clients may have."""
    monkeypatch.setattr(clusters, "Sums", PublicSums)
    found = Cluster()
    found.parties[~0] = wanting(found)
    return found


def wanting(cluster: Cluster, log: Sequence[Message] = (), public: bytes = b"") -> Client:
    return Client(cluster.rules, 0, signer(key("client", 0)), log, WANTS, public)


def advance(cluster: Cluster, *rounds: int) -> None:
    for round_ in rounds:
        cluster.train(round_)
        cluster.settle()
        cluster.expire(Timer.DEADLINE)
        cluster.settle()


def publics(messages: Sequence[Message]) -> list[tuple[int, bytes]]:
    """Return round and content of the public parts among some messages."""
    bodies = [message.body for message in messages]
    return [
        (body.round, body.content)
        for body in bodies
        if isinstance(body, Part) and body.what == PartKind.PUBLIC
    ]


def asked(cluster: Cluster, party: int) -> int:
    """Return how often a party has asked for a public part."""
    bodies = [message.body for sender, _, message in cluster.sent if sender == party]
    return sum(isinstance(body, Fetch) and body.what == PartKind.PUBLIC for body in bodies)


def known(cluster: Cluster, party: int) -> list[bytes]:
    """Return the public part of each outcome that a party has reported."""
    return [
        decided.outcome.public for decided in cluster.decided[party] if decided.outcome is not None
    ]


def replica(cluster: Cluster, server: int) -> Replica:
    found = cluster.parties[server]
    assert isinstance(found, Replica)
    return found


def test_servers_store_it_when_it_changes(cluster: Cluster) -> None:
    advance(cluster, 1, 2, 3, 4, 5)
    for server in range(4):
        assert publics(cluster.logs[server]) == [(1, b"public 1"), (4, b"public 4")]
        assert known(cluster, server) == [*[b"public 1"] * 3, *[b"public 4"] * 2]


def test_a_client_fetches_it_when_it_changes(cluster: Cluster) -> None:
    advance(cluster, 1, 2, 3)
    assert (asked(cluster, ~0), known(cluster, ~0)) == (1, [b"public 1"] * 3)
    advance(cluster, 4, 5)
    assert (asked(cluster, ~0), known(cluster, ~0)[3:]) == (2, [b"public 4"] * 2)
    assert publics(cluster.logs[~0]) == [(1, b"public 1"), (4, b"public 4")]


def test_without_one_nobody_asks_and_nothing_is_stored() -> None:
    cluster = Cluster()
    cluster.parties[~0] = wanting(cluster)
    advance(cluster, 1, 2)
    assert (asked(cluster, ~0), known(cluster, ~0)) == (0, [b"", b""])
    assert publics(cluster.logs[0] + cluster.logs[~0]) == []


def test_a_client_that_was_away_gets_it_later(cluster: Cluster) -> None:
    cluster.passes = lambda sender, receiver, message: receiver != ~0
    advance(cluster, 1, 2)
    assert known(cluster, ~0) == []
    cluster.passes = lambda sender, receiver, message: True
    advance(cluster, 3)
    cluster.expire(Timer.RESEND, ~0)
    cluster.settle()
    assert known(cluster, ~0)[-1] == b"public 1"
    assert asked(cluster, ~0) == 1


@pytest.mark.parametrize("shorter", [False, True])
def test_a_client_keeps_it_over_a_restart(cluster: Cluster, shorter: bool) -> None:
    advance(cluster, 1, 2)
    log = cluster.logs[~0]
    if shorter:
        log = compacted(log)
        assert publics(log) == [(1, b"public 1")]
    cluster.parties[~0] = wanting(cluster, log)
    cluster.give(~0, Start())
    advance(cluster, 3)
    assert (asked(cluster, ~0), known(cluster, ~0)[-1]) == (1, b"public 1")


def test_a_client_that_inherited_it_does_not_ask(cluster: Cluster) -> None:
    cluster.parties[~0] = wanting(cluster, public=b"public 1")
    advance(cluster, 1, 2)
    assert (asked(cluster, ~0), known(cluster, ~0)) == (0, [b"public 1"] * 2)


@pytest.mark.parametrize("shorter", [False, True])
def test_a_server_keeps_it_over_a_restart(cluster: Cluster, shorter: bool) -> None:
    advance(cluster, 1, 2, 3)
    if shorter:
        cluster.logs[2] = compacted(cluster.logs[2])
    assert publics(cluster.logs[2]) == [(1, b"public 1")]
    cluster.restart(2)
    outcome = replica(cluster, 2).outcome
    assert outcome is not None
    assert outcome.public == b"public 1"
    assert asked(cluster, 2) == 0
    advance(cluster, 4, 5)
    assert known(cluster, 2)[-2:] == [b"public 4"] * 2
    assert publics(cluster.logs[2]) == [(1, b"public 1"), (4, b"public 4")]
    assert publics(compacted(cluster.logs[2])) == [(4, b"public 4")]


def test_a_server_that_was_away_fetches_and_stores_it(cluster: Cluster) -> None:
    cluster.passes = among(0, 1, 2)
    advance(cluster, 1, 2)
    cluster.passes = lambda sender, receiver, message: True
    advance(cluster, 3)
    cluster.expire(Timer.RESEND)
    cluster.settle()
    assert replica(cluster, 3).round == 4
    assert known(cluster, 3)[-1] == b"public 1"
    assert publics(cluster.logs[3])[-1][1] == b"public 1"
    # After another round and a restart, with the log as it is or a shorter one.
    advance(cluster, 4, 5)
    for log in (cluster.logs[3], compacted(cluster.logs[3])):
        cluster.logs[3] = list(log)
        cluster.restart(3)
        outcome = replica(cluster, 3).outcome
        assert outcome is not None
        assert outcome.public == b"public 4"


def test_what_came_before_the_other_parts_is_not_lost(cluster: Cluster) -> None:
    """A server gets the public part of round 1, and only certificates until round 3."""
    cluster.passes = among(0, 1, 2)
    advance(cluster, 1)
    lacks = {PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE}
    hidden = [True]

    def passes(sender: int, receiver: int, message: Message) -> bool:
        body = message.body
        is_part = isinstance(body, Part) and body.what in lacks
        return not (hidden[0] and receiver == 3 and is_part)

    cluster.passes = passes
    for round_ in (2, 3):
        advance(cluster, round_)
        cluster.expire(Timer.RESEND)
        cluster.settle()
    hidden[0] = False
    cluster.expire(Timer.RESEND)
    cluster.settle()
    assert replica(cluster, 3).outcome is not None
    assert len(publics(cluster.logs[3])) == 1
    cluster.restart(3)
    outcome = replica(cluster, 3).outcome
    assert outcome is not None
    assert outcome.public == b"public 1"


def test_what_was_computed_for_another_set_is_stored_if_it_is_certified(cluster: Cluster) -> None:
    """A server computes round 1 on four uploads and does not vote; three are decided on."""
    cluster.passes = lambda sender, receiver, message: (
        among(0, 1, 2)(sender, receiver, message) and (sender != ~3 or receiver == 3)
    )
    cluster.train(1)
    cluster.settle()
    cluster.expire(Timer.DEADLINE, 0, 1, 2)
    cluster.settle()
    entries = replica(cluster, 3).upload_pool.entries()
    assert len(entries) == 4
    lists = tuple(cluster.say(server, UploadList(1, server, entries)) for server in range(3))
    wrong = Record(1, cluster.rules.run, *[bytes(32)] * 6)
    cluster.give(3, Received(1, cluster.say(1, PrePrepare(1, 0, 1, wrong, lists, ()))))
    assert publics(cluster.logs[3]) == []
    cluster.passes = lambda sender, receiver, message: True
    decided = cluster.rules.unsigned(Cert(1, replica(cluster, 0).chain[1]))
    cluster.give(3, Received(0, decided))
    cluster.settle()
    assert asked(cluster, 3) == 0
    assert publics(cluster.logs[3]) == [(1, b"public 1")]
    cluster.restart(3)
    outcome = replica(cluster, 3).outcome
    assert outcome is not None
    assert outcome.public == b"public 1"


def test_a_server_that_lost_its_log_gets_it_again(cluster: Cluster) -> None:
    advance(cluster, 1, 2)
    cluster.lose(0, NONCE)
    cluster.settle()
    for round_ in (3, 4, 5):
        advance(cluster, round_)
        # Server 0 leads round 4, and must be silent.
        if replica(cluster, 1).round == round_:
            cluster.expire(Timer.VIEW, 1, 2, 3)
            cluster.settle()
        cluster.expire(Timer.RESEND)
        cluster.settle()
    assert known(cluster, 0)[-1] == b"public 4"
    cluster.restart(0)
    outcome = replica(cluster, 0).outcome
    assert outcome is not None
    assert outcome.public == b"public 4"


def test_what_was_inherited_is_stored_in_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the log of a run is whole, also when the run is over."""

    class Inheriting(PublicSums):
        def __init__(self) -> None:
            super().__init__(b"from before")

        def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
            outcome = super().decide(round_, before, uploads)
            return outcome._replace(public=before.public)

    monkeypatch.setattr(clusters, "Sums", Inheriting)
    cluster = Cluster()
    advance(cluster, 1, 2)
    assert publics(cluster.logs[0]) == [(1, b"from before")]
    alone = Replica(cluster.rules, 0, signer(key("server", 0)), PublicSums(), cluster.logs[0])
    assert alone.outcome is not None
    assert alone.outcome.public == b"from before"
