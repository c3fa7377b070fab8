"""Lists and votes that came over their senders' own links are verified when they are needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fedrfq.consensus.events import Broadcast, Effect, Received
from fedrfq.consensus.messages import (
    Cert,
    Commit,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    UploadList,
    decode,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from support.cluster import Cluster, Sums, key, signer


class CountingRules(Rules):
    """Rules that count the signatures they verify, by the kind of message."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        self.counts: Counter[Kind] = Counter()

    def authentic(self, message: Message) -> bool:
        if message.verified_by is not self:
            self.counts[message.body.kind] += 1
        return super().authentic(message)


def forged(message: Message) -> Message:
    """Return a message with a signature that does not hold."""
    return Message(message.run, message.body, message.raw, bytes(64))


def said(effects: list[Effect]) -> list[Kind]:
    return [effect.message.body.kind for effect in effects if isinstance(effect, Broadcast)]


@pytest.mark.parametrize(("servers", "needed"), [(4, 3), (7, 5), (10, 7)])
def test_a_round_verifies_no_more_signatures_than_it_shows_to_others(
    servers: int, needed: int
) -> None:
    """Server 0 does not lead; a quorum and n − f are the same number in these committees."""
    cluster = Cluster(servers)
    cluster.train(1)
    cluster.settle()
    rules = CountingRules(cluster.roster)
    replica = Replica(rules, 0, signer(key("server", 0)), Sums())
    received = [(sender, message) for sender, to, message in cluster.sent if to == 0]
    for sender, message in received:
        replica.step(Received(sender, decode(message.wire)))
    assert replica.chain == cluster.parties[0].chain
    heard = Counter(message.body.kind for _, message in received)
    for kind in (Kind.LIST, Kind.PREPARE, Kind.COMMIT):
        assert heard[kind] == servers - 1
    assert rules.counts == {
        Kind.UPLOAD: 4,
        Kind.PREPREPARE: 1,
        Kind.LIST: needed,
        Kind.PREPARE: needed - 1,
        Kind.COMMIT: needed - 1,
    }


def test_a_vote_that_somebody_else_sends_is_verified_at_once() -> None:
    cluster = Cluster()
    vote = forged(cluster.say(2, Prepare(1, 0, bytes(32), 2)))
    cluster.give(0, Received(3, vote))
    replica = cluster.parties[0]
    assert replica.ignored == {"bad signature": 1}
    assert not replica.votes.prepares
    # Server 2 has not sent it, so nothing is held against it.
    assert not replica.forgers


def voting(kind: Kind) -> Cluster:
    """Return a committee of four in which server 0 lacks one vote of this kind.

    It has heard the proposal, and of the votes of this kind only its own and that of server 1.
    Nothing that comes after them has reached it.
    """
    cluster = Cluster()
    cluster.passes = lambda s, r, m: r != 0 or m.body.kind < kind + (s == 1)
    cluster.train(1)
    cluster.settle()
    return cluster


def test_a_forged_prepare_makes_no_certificate_and_its_sender_is_not_trusted_again() -> None:
    cluster = voting(Kind.PREPARE)
    replica = cluster.parties[0]
    bad = forged(cluster.said(3, Kind.PREPARE)[0])
    assert not said(cluster.give(0, Received(3, bad)))
    assert replica.certificates.prepared is None
    assert set(replica.votes.prepares) == {0, 1}
    assert replica.forgers == {3}
    assert replica.ignored["bad signature"] == 1
    # Now it is verified before it is counted, even where nothing is to be made of it yet.
    cluster.give(0, Received(3, forged(cluster.said(3, Kind.COMMIT)[0])))
    assert replica.ignored["bad signature"] == 2
    assert not replica.votes.commits
    # The vote of another server is enough to go on.
    good = cluster.said(2, Kind.PREPARE)[0]
    assert said(cluster.give(0, Received(2, good))) == [Kind.COMMIT]
    assert cluster.rules.certifies(replica.certificates.prepared, Kind.PREPARE)


def test_a_forged_commit_decides_nothing() -> None:
    cluster = voting(Kind.COMMIT)
    replica = cluster.parties[0]
    cluster.give(0, Received(3, forged(cluster.said(3, Kind.COMMIT)[0])))
    assert not replica.chain
    assert set(replica.votes.commits) == {0, 1}
    assert replica.forgers == {3}
    cluster.give(0, Received(2, cluster.said(2, Kind.COMMIT)[0]))
    assert cluster.rules.certifies(replica.chain[1], Kind.COMMIT)
    stored = [m.body for m in cluster.logs[0] if isinstance(m.body, Cert)]
    assert all(cluster.rules.certifies(b.certificate, b.certificate.phase) for b in stored)


def test_a_leader_proposes_no_forged_list() -> None:
    cluster = Cluster()
    cluster.passes = lambda s, r, m: r != 1 or m.body.kind != Kind.LIST or s == 0
    cluster.train(1)
    cluster.settle()
    lists = {server: cluster.said(server, Kind.LIST)[0] for server in (2, 3)}
    assert not said(cluster.give(1, Received(2, forged(lists[2]))))
    leader = cluster.parties[1]
    assert set(leader.upload_lists.current) == {0, 1}
    assert leader.forgers == {2}
    assert Kind.PREPREPARE in said(cluster.give(1, Received(3, lists[3])))
    proposal = cluster.said(1, Kind.PREPREPARE)[0].body
    assert isinstance(proposal, PrePrepare)
    assert cluster.rules.proper_proposal(proposal)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("kind", [Kind.LIST, Kind.PREPARE, Kind.COMMIT])
def test_a_forged_message_is_no_evidence(kind: Kind, is_first: bool) -> None:
    cluster = Cluster()
    replica = cluster.parties[0]
    entry = (0, bytes(32))
    bodies: dict[Kind, tuple[UploadList | Prepare | Commit, ...]] = {
        Kind.LIST: (UploadList(1, 3, (entry,)), UploadList(1, 3, (entry, (1, bytes(32))))),
        Kind.PREPARE: (Prepare(1, 0, bytes(32), 3), Prepare(1, 0, b"\1" * 32, 3)),
        Kind.COMMIT: (Commit(1, 0, bytes(32), 3), Commit(1, 0, b"\1" * 32, 3)),
    }
    first, second = (cluster.say(3, body) for body in bodies[kind])
    if is_first:
        first = forged(first)
    else:
        second = forged(second)
    slots = {
        Kind.LIST: replica.upload_lists.current,
        Kind.PREPARE: replica.votes.prepares,
        Kind.COMMIT: replica.votes.commits,
    }[kind]
    for message in (first, second):
        cluster.give(0, Received(3, message))
    assert not cluster.accused[0]
    assert replica.forgers == {3}
    assert replica.ignored["bad signature"] == 1
    # What is forged is gone; a true message that came first stays.
    assert list(slots.values()) == ([] if is_first else [first])


def test_two_unverified_votes_that_both_hold_are_evidence() -> None:
    cluster = Cluster()
    vote = Prepare(1, 0, bytes(32), 3)
    for body in (vote, replace(vote, value=b"\1" * 32)):
        cluster.give(0, Received(3, decode(cluster.say(3, body).wire)))
    assert len(cluster.accused[0]) == 1
    assert not cluster.parties[0].forgers


def test_an_early_vote_is_verified_in_its_round() -> None:
    cluster = Cluster()
    early = forged(cluster.say(3, Prepare(2, 0, bytes(32), 3)))
    cluster.give(0, Received(3, early))
    cluster.train(1)
    cluster.settle()
    replica = cluster.parties[0]
    assert replica.votes.prepares == {3: early}
    cluster.train(2)
    cluster.settle()
    assert cluster.rules.certifies(replica.chain[2], Kind.COMMIT)
    assert not cluster.accused[0]


def test_forgers_do_not_delay_the_others() -> None:
    """Two of seven servers sign their votes badly: all rounds end in view 0 all the same."""
    cluster = Cluster(7)
    for round_ in (1, 2, 3):
        cluster.train(round_)
        while cluster.queue:
            sender, receiver, message = cluster.queue.popleft()
            if sender >= 5 and message.body.kind in (Kind.LIST, Kind.PREPARE, Kind.COMMIT):
                message = forged(message)
            cluster.give(receiver, Received(sender, message))
        for server in range(5):
            certificate = cluster.parties[server].chain[round_]
            assert certificate.view == 0
            assert cluster.rules.certifies(certificate, Kind.COMMIT)
