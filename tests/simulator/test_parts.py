"""The simulator's parts by themselves: keys, the toy application, networks, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Broadcast, Decided, LeftOut, Persist, Received, Send
from fedrfq.consensus.messages import (
    Certificate,
    Commit,
    Inputs,
    Kind,
    Part,
    PartKind,
    Record,
    Upload,
    UploadList,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.held_messages import messages_held
from fedrfq.simulator.fuzz.ideal_signatures import WEAK
from fedrfq.simulator.fuzz.observed import quorum, union
from fedrfq.simulator.fuzz.schedule_run import ScheduleRun, run
from fedrfq.simulator.fuzz.toy import Toy, content
from fedrfq.simulator.network import NETWORKS, Hole, LinkFaults, Network, Split
from support.simulated import IDEAL, PLAIN, roster


def test_everybody_can_sign_with_the_weak_key_alone() -> None:
    key = IDEAL.key(3)
    signature = IDEAL.signer(key)(b"x")
    assert IDEAL.verify(key, b"x", signature)
    assert not IDEAL.verify(key, b"y", signature)
    assert not IDEAL.verify(IDEAL.key(~3), b"x", signature)
    assert IDEAL.weak(WEAK)
    assert not IDEAL.weak(key)


def test_the_toy_sees_order_absence_and_the_past() -> None:
    toy = Toy()
    uploads = [Upload(1, client, content(number)) for client, number in enumerate((5, 6, 100, 7))]
    first = toy.decide(1, toy.start(), uploads)
    assert first.verdicts == bytes([2])  # 100 is the farthest from the median
    one_missing = toy.decide(1, toy.start(), uploads[:3])
    other_order = toy.decide(1, toy.start(), uploads[:2] + uploads[:1:-1])
    other_past = toy.decide(1, first, uploads)
    assert len({first, one_missing, other_order, other_past}) == 4
    assert toy.refuses(uploads[0]) is None
    for bad in (b"", b"t" + bytes(9), b"x" + bytes(8), content(2 * 10**6)):
        assert toy.refuses(Upload(1, 0, bad)) is not None


def test_a_network_misbehaves_until_it_is_calm() -> None:
    split = Split(0, 50, frozenset({0}))
    hole = Hole(Kind.COMMIT, 0, frozenset({1}), frozenset({2}))
    links = LinkFaults(
        1, 5, 100, loss=0.5, double=0.5, splits=(split,), holes=(hole,), favoured=frozenset({3})
    )
    network = Network(links, Random(1))
    message = Rules(roster()).unsigned(Part(1, PartKind.SET, b""))
    commit = Rules(roster()).signed(Commit(1, 0, bytes(32), 1), IDEAL.signer(IDEAL.key(1)))
    assert all(network.delays(10, 0, 1, message) == () for _ in range(50))
    assert all(network.delays(60, 1, 0, commit) == () for _ in range(50))
    assert {len(network.delays(60, 1, 2, commit)) for _ in range(50)} == {0, 1, 2}
    for now, origin in ((10, 3), (100, 0), (1000, 1)):
        (delay,) = network.delays(now, origin, 1, message)
        assert 1 <= delay <= 5
    assert hole.swallows(1, 0, 1)
    assert replace(hole, round=1).swallows(1, 0, 1)
    assert not replace(hole, round=2).swallows(1, 0, 1)
    echoing = Network(LinkFaults(1, 5, 100, echoes=True), Random(1))
    answer = Rules(roster()).unsigned(Part(1, PartKind.STANDING, bytes(32)))
    assert len(echoing.delays(0, 0, 1, answer)) > 10
    assert len(echoing.delays(0, 0, 1, message)) == len(echoing.delays(200, 0, 1, answer)) == 1
    assert network.lost
    assert network.doubled
    assert network.cut == 100


@pytest.mark.parametrize("name", NETWORKS)
def test_named_networks(name: str) -> None:
    assert run(replace(PLAIN, links=NETWORKS[name](4), deadline_ms=8000)).violation is None


def test_a_client_whose_upload_does_not_count_is_told() -> None:
    schedule_run = ScheduleRun(PLAIN, Replica, Rules, Client, IDEAL)
    given = []
    schedule_run.world.give = lambda party, event, delay_ms=0: given.append((party, event))  # type: ignore[method-assign]
    decided = Decided(Certificate(Kind.COMMIT, 0, Record(1, *[bytes(32)] * 7), ()), None, ())
    for known in (False, True):
        if known:
            schedule_run.observer.chain.sets[1] = Inputs(tuple((k, bytes(32)) for k in range(3)))
        for node in schedule_run.world.nodes.values():
            schedule_run._on_decided(node, decided)
    assert [party for party, event in given if event == LeftOut(1)] == [~3]


def test_quorums_and_unions_by_their_definitions() -> None:
    assert [quorum(n) for n in (1, 4, 5, 6, 7, 8, 9, 10)] == [1, 3, 4, 4, 5, 6, 6, 7]
    a, b, c = (bytes([k]) * 32 for k in range(3))
    lists = [UploadList(1, 0, ((0, a), (1, b))), UploadList(1, 1, ((1, c), (2, c)))]
    assert union(lists) == Inputs(((0, a), (2, c)))  # client 1 has two uploads


def test_messages_are_counted_wherever_they_are() -> None:
    rules = Rules(roster())
    one, two = (rules.unsigned(Part(1, PartKind.SET, bytes([k]))) for k in range(2))
    inner = SimpleNamespace(deep={"x": [one, (two, one)]})
    assert len(messages_held(SimpleNamespace(a=inner, b={one}, shared=rules))) == 2
    assert len(messages_held(SimpleNamespace(a=inner), shared=[inner])) == 0
    in_events = [Received(0, one), Send(1, two)]
    in_effects = (Persist(one), Broadcast(two))
    assert len(messages_held(SimpleNamespace(a=in_events, b=in_effects))) == 2
    assert len(messages_held(SimpleNamespace(a=object.__new__(Received)))) == 0
