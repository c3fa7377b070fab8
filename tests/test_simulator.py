"""The simulator: the same seed gives the same bytes, all kinds of faults occur, and each invariant can break."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.essence import essence
from fedrfq.consensus.machine import (
    Accused,
    Broadcast,
    Decided,
    Effect,
    Event,
    Expired,
    LeftOut,
    Persist,
    Received,
    Send,
    Start,
    Timer,
)
from fedrfq.consensus.messages import (
    Body,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Kind,
    List,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    Record,
    Upload,
    ViewChange,
    What,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS
from fedrfq.simulator.drawing import Schedule
from fedrfq.simulator.holding import attributes, messages_held
from fedrfq.simulator.ideal import WEAK, Ideal
from fedrfq.simulator.invariants import INVARIANTS, Observer
from fedrfq.simulator.network import NETWORKS, Hole, Links, Network, Split
from fedrfq.simulator.schedule import Report, Trial, draw, run
from fedrfq.simulator.seen import quorum, union
from fedrfq.simulator.toy import Toy, content
from fedrfq.simulator.violation import Violation
from fedrfq.simulator.world import Crash, Node

IDEAL = Ideal()
SHORTER: list[bool] = []  # whether a log was cut
PLAIN = Schedule(1, 4, 4, 3, 3, 150, 100, 200, 20, (), (), (), 0.0, None, Links())


def trial(schedule: Schedule, replica: type[Replica] = Replica, wire: bool = False) -> Trial:
    made = Trial(schedule, replica, Rules, Client, IDEAL)
    made.world.wire = wire
    made.run()
    return made


# The whole


def test_the_same_seed_gives_the_same_transcript() -> None:
    """In another process too, where bytes hash differently."""
    script = (
        "from fedrfq.simulator.schedule import draw, run; import sys;"
        "sys.stdout.write(''.join(run(draw(seed, 4), trace=True).transcript for seed in range(8)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True, timeout=60)
    here = "".join(run(draw(seed, 4), trace=True).transcript for seed in range(8))
    assert here == there.stdout
    assert len(here) > 10_000


@pytest.mark.parametrize(("n", "seeds"), [(4, 120), (5, 25), (6, 15), (7, 15), (10, 4)])
def test_schedules_hold(n: int, seeds: int) -> None:
    for seed in range(seeds):
        report = run(draw(seed, n))
        assert report.violation is None, f"n={n} seed={seed}: {report.violation}"


def test_every_schedule_is_large_enough_and_has_a_fault() -> None:
    for seed in range(2000):
        schedule = draw(seed, 4)
        faults = (schedule.behaviours, schedule.faulty_clients, schedule.crashes, schedule.links.calm_ms, schedule.weak)
        assert schedule.rounds >= 3
        assert schedule.clients >= 4
        assert any(faults) or schedule.links.slow_ms > schedule.view_ms
        assert len(schedule.behaviours) <= 1


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_each_behaviour_of_servers_is_borne(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        schedule = replace(PLAIN, seed=seed, n=7, behaviours=((1, name), (3, name)), faulty_clients=((0, "late"),))
        report = run(schedule)
        assert report.violation is None, f"seed={seed}: {report.violation}"
        counts += report.exercised
    assert counts[f"server {name}"] == 12
    assert counts["rounds decided"] == 18


@pytest.mark.parametrize("name", CLIENTS)
def test_each_behaviour_of_clients_is_borne(name: str) -> None:
    for seed in range(10):
        report = run(replace(PLAIN, seed=seed, faulty_clients=((1, name),)))
        assert report.violation is None, f"seed={seed}: {report.violation}"


def test_what_goes_wrong_is_counted() -> None:
    counts: Counter[str] = sum((run(draw(seed, 4)).exercised for seed in range(1000, 1150)), Counter())
    wanted = ["crashes", "restarts", "lost", "doubled", "cut off", "partitions", "clock jumps", "view changes", "catch-ups"]
    wanted += ["logs lost", "logs cut to their essence", "run over", "fetches", "weak key refused"]
    wanted += ["decided in view 0", "decided in view 1", "decided in view 2"]
    wanted += [f"evidence of two {kind}" for kind in ("UPLOAD", "LIST", "PREPREPARE", "PREPARE", "COMMIT")]
    wanted += [f"server {name}" for name in BEHAVIOURS] + [f"client {name}" for name in CLIENTS]
    assert not [name for name in wanted if not counts[name]]


def test_bytes_on_the_wire_lead_to_the_same_decisions() -> None:
    for seed in range(12):
        schedule = replace(draw(seed, 4), behaviours=(), faulty_clients=((0, "equivocating"),), motions=0.5, wants=True)
        assert trial(schedule).observer.chain.values == trial(schedule, wire=True).observer.chain.values


def test_bytes_that_are_no_message_are_refused() -> None:
    schedules = [replace(draw(seed, 4), behaviours=((2, "forge"),), crashes=()) for seed in range(8)]
    assert sum(trial(schedule, wire=True).world.counts["bytes refused"] for schedule in schedules) > 20


def test_a_crash_at_every_effect_of_every_step() -> None:
    """Of a leader that closes, proposes, votes and decides; it comes back with what was persisted and nothing else."""
    steps = [len(actions) for actions in _actions_of(1)]
    assert len(steps) > 40
    for step, number in enumerate(steps, 1):
        for effects in range(number):
            crashed = trial(replace(PLAIN, crashes=(Crash(1, step, effects, 5),)))
            assert crashed.world.counts["crashes"] == 1, (step, effects)


def _actions_of(party: int) -> list[Any]:
    made, seen = Trial(PLAIN, Replica, Rules, Client, IDEAL), []
    made.world.trace = lambda now, node, event, actions: seen.append(actions) if node.party == party else None
    made.run()
    return seen


def test_a_crash_when_something_becomes_durable() -> None:
    for kind in (Kind.UPLOAD, Kind.LIST, Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.CERT, Kind.BODY):
        for effects in range(3):
            assert trial(replace(PLAIN, crashes=(Crash(1, 1, effects, 50, kind),))).world.counts["crashes"] == 1


def test_a_log_is_lost_at_every_step() -> None:
    """Of a server that would have led, closed and voted: it follows the others to the end, and speaks again in between."""
    for step in range(1, len(_actions_of(1)), 3):
        lost = trial(replace(PLAIN, rounds=5, seed=step, motions=0.5, crashes=(Crash(1, step, 1, 5, forgets=True),)))
        assert lost.world.counts["logs lost"] == 1, step


def test_what_matters_of_a_log_recalls_to_the_same_place() -> None:
    """At every crash of many schedules, of servers that rejoin too."""
    SHORTER.clear()
    for seed in range(60):
        made = Trial(draw(seed, 4), Replica, Rules, Client, IDEAL)
        made._crashed = partial(_compared, made._crashed)  # type: ignore[method-assign]
        made.run()
    assert sum(SHORTER) > 10


def _compared(crashed: Callable[[Node, Crash], list[Message]], node: Node, crash: Crash) -> list[Message]:
    short = essence(node.log)
    assert short == essence(short)
    assert _remembered(node.make(short)) == _remembered(node.make(node.log))
    SHORTER.append(len(short) < len(node.log))
    return crashed(node, crash)


def _remembered(machine: Any) -> dict[str, Any]:
    """All of its state, but for what it shares with others, the lists of the round before, and silence long over."""
    shared = ("rules", "roster", "signer", "application", "effects", "moved", "ignored", "holdings")
    state = {name: value for name, value in attributes(machine).items() if name not in (*shared, "last_lists", "abstains")}
    return state | vars(getattr(machine, "holdings", SimpleNamespace()))


# Its parts


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
    assert first.verdicts == bytes([2])  # 100 is the farthest from the middle
    others = (uploads[:3], uploads[:2] + uploads[:1:-1])
    assert len({first, *(toy.decide(1, toy.start(), other) for other in others), toy.decide(1, first, uploads)}) == 4
    assert toy.refuses(uploads[0]) is None
    for bad in (b"", b"t" + bytes(9), b"x" + bytes(8), content(2 * 10**6)):
        assert toy.refuses(Upload(1, 0, bad)) is not None


def test_a_network_misbehaves_until_it_is_calm() -> None:
    split, hole = Split(0, 50, frozenset({0})), Hole(Kind.COMMIT, 0, frozenset({1}), frozenset({2}))
    network = Network(
        Links(1, 5, 100, loss=0.5, double=0.5, splits=(split,), holes=(hole,), favoured=frozenset({3})), Random(1)
    )
    message = Rules(_roster()).unsigned(Body(1, What.SET, b""))
    commit = Rules(_roster()).signed(Commit(1, 0, bytes(32), 1), IDEAL.signer(IDEAL.key(1)))
    assert all(network.delays(10, 0, 1, message) == () for _ in range(50))
    assert all(network.delays(60, 1, 0, commit) == () for _ in range(50))
    assert {len(network.delays(60, 1, 2, commit)) for _ in range(50)} == {0, 1, 2}
    for now, origin in ((10, 3), (100, 0), (1000, 1)):
        assert all(len(delays) == 1 and 1 <= delays[0] <= 5 for delays in [network.delays(now, origin, 1, message)])
    here, elsewhere = (replace(hole, round=round_) for round_ in (1, 2))
    assert [each.swallows(1, 0, 1) for each in (hole, here, elsewhere)] == [True, True, False]
    echoing = Network(Links(1, 5, 100, echoes=True), Random(1))
    answer = Rules(_roster()).unsigned(Body(1, What.STANDING, bytes(32)))
    assert len(echoing.delays(0, 0, 1, answer)) > 10
    assert len(echoing.delays(0, 0, 1, message)) == len(echoing.delays(200, 0, 1, answer)) == 1
    assert network.lost
    assert network.doubled
    assert network.cut == 100


@pytest.mark.parametrize("name", NETWORKS)
def test_named_networks(name: str) -> None:
    assert run(replace(PLAIN, links=NETWORKS[name](4), deadline_ms=8000)).violation is None


def test_a_client_whose_upload_does_not_count_is_told() -> None:
    made, told = Trial(PLAIN, Replica, Rules, Client, IDEAL), []
    made.world.give = lambda party, event, delay_ms=0: told.append((party, event))  # type: ignore[method-assign]
    decided = Decided(Certificate(Kind.COMMIT, 0, Record(1, *[bytes(32)] * 5), ()), None, ())
    for known in (False, True):
        if known:
            made.observer.chain.sets[1] = tuple((k, bytes(32)) for k in range(3))
        for node in made.world.nodes.values():
            made._decided(node, decided)
    assert [party for party, event in told if event == LeftOut(1)] == [~3]


def test_quorums_and_unions_by_their_definitions() -> None:
    assert [quorum(n) for n in (1, 4, 5, 6, 7, 8, 9, 10)] == [1, 3, 4, 4, 5, 6, 6, 7]
    a, b, c = (bytes([k]) * 32 for k in range(3))
    assert union([List(1, 0, ((0, a), (1, b))), List(1, 1, ((1, c), (2, c)))]) == ((0, a), (2, c))


def test_messages_are_counted_wherever_they_are() -> None:
    rules = Rules(_roster())
    one, two = (rules.unsigned(Body(1, What.SET, bytes([k]))) for k in range(2))
    inner = SimpleNamespace(deep={"x": [one, (two, one)]})
    assert messages_held(SimpleNamespace(a=inner, b={one}, shared=rules)) == 2
    assert messages_held(SimpleNamespace(a=inner), shared=[inner]) == 0
    assert messages_held(SimpleNamespace(a=[Received(0, one), Send(1, two)], b=(Persist(one), Broadcast(two)))) == 2
    assert messages_held(SimpleNamespace(a=object.__new__(Received))) == 0


# Each invariant, broken by hand


def _roster() -> Roster:
    servers, clients = tuple(IDEAL.key(s) for s in range(4)), tuple(IDEAL.key(~k) for k in range(4))
    return Roster(IDEAL, servers, clients)


class Bench:
    """An observer of four honest servers and clients, but for server 3, and means to make them say things."""

    def __init__(self) -> None:
        self.rules = Rules(_roster())
        self.observer = Observer(self.rules.roster, Toy(), [0, 1, 2, *(~k for k in range(4))])
        self.observer.bounded = lambda node: self.looked.append(node.party)  # type: ignore[method-assign]
        self.looked: list[int] = []  # at what these servers hold, which here is nothing
        self.uploads = [self.said(~k, Upload(1, k, content(k))) for k in range(4)]
        for k, upload in enumerate(self.uploads):
            self.does(~k, Persist(upload), Broadcast(upload))
        self.entries = tuple((k, upload.digest) for k, upload in enumerate(self.uploads))
        self.lists = tuple(self.said(s, List(1, s, self.entries)) for s in range(4))

    def said(self, party: int, body: Any) -> Message:
        key = self.rules.roster.key(party)
        assert key is not None
        return self.rules.signed(body, IDEAL.signer(key))

    def does(self, party: int, *actions: Effect, event: Event | None = None) -> None:
        node: Any = SimpleNamespace(party=party, honest=party != 3, machine=SimpleNamespace(round=1))
        self.observer.acted(node, Expired(Timer.RESEND) if event is None else event, list(actions))

    def says(self, party: int, body: Any) -> None:
        message = self.said(party, body)
        self.does(party, Persist(message), Broadcast(message))

    def proposed(self, lists: tuple[Message, ...], entries: Any = None, previous: bytes | None = None) -> PrePrepare:
        entries = self.rules.union(lists)[0] if entries is None else entries
        bodies = [Upload(1, k, content(k)) for k, _ in entries]
        outcome = Toy().decide(1, Toy().start(), bodies)
        return PrePrepare(1, 0, 1, self.rules.record(1, previous or self.rules.run, entries, outcome), lists, ())

    def certificate(self, proposal: PrePrepare, signers: tuple[int, ...] = (0, 1, 2)) -> Certificate:
        value = proposal.record.value(self.rules.run)
        votes = tuple((s, self.said(s, Commit(1, 0, value, s)).signature) for s in signers)
        return Certificate(Kind.COMMIT, 0, proposal.record, votes)

    def decides(self, party: int, proposal: PrePrepare, signers: tuple[int, ...] = (0, 1, 2)) -> None:
        self.does(3, Broadcast(self.said(1, proposal)))
        self.does(party, Decided(self.certificate(proposal, signers), None, ()))

    def breaks(self, name: str) -> Any:
        return pytest.raises(Violation, match=f"^{name}: ")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_is_well_by_hand(bench: Bench) -> None:
    for server in (0, 1, 2):
        bench.does(server, *map(Persist, bench.uploads), Send(~0, bench.said(server, Receipt(1, server, *bench.entries[0]))))
        bench.says(server, List(1, server, bench.entries))
    proposal = bench.proposed(bench.lists[:3])
    bench.decides(0, proposal)
    bench.decides(~2, proposal)
    assert bench.observer.counted()["rounds decided"] == 1


def test_agreement(bench: Bench) -> None:
    bench.decides(0, bench.proposed(bench.lists[:3]))
    few = tuple(bench.said(s, List(1, s, bench.entries[:3])) for s in range(3))
    with bench.breaks("agreement"):
        bench.decides(~1, bench.proposed(few))


def test_rounds_are_chained(bench: Bench) -> None:
    with bench.breaks("agreement"):
        bench.decides(0, bench.proposed(bench.lists[:3], previous=bytes(32)))


@pytest.mark.parametrize("signers", [(0, 1), (0, 0, 1), (0, 1, 2, 2)])
def test_certificate(bench: Bench, signers: tuple[int, ...]) -> None:
    with bench.breaks("certificate"):
        bench.decides(0, bench.proposed(bench.lists[:3]), signers)


def test_a_certificate_of_another_phase_and_a_round_twice(bench: Bench) -> None:
    certificate = bench.certificate(bench.proposed(bench.lists[:3]))
    with bench.breaks("certificate"):
        bench.does(0, Send(1, bench.rules.unsigned(Cert(1, replace(certificate, phase=Kind.PREPARE)))))
    bench.decides(0, bench.proposed(bench.lists[:3]))
    with bench.breaks("certificate"):
        bench.decides(0, bench.proposed(bench.lists[:3]))


def test_union(bench: Bench) -> None:
    for lists in (bench.lists[:2], bench.lists[:2] + bench.lists[:1]):
        with Bench().breaks("union"):
            Bench().decides(0, bench.proposed(lists))
    with bench.breaks("union"):
        bench.decides(0, bench.proposed(bench.lists[:3], bench.entries[:3]))


def test_validity_of_the_result(bench: Bench) -> None:
    proposal = bench.proposed(bench.lists[:3])
    with bench.breaks("validity"):
        bench.decides(0, replace(proposal, record=replace(proposal.record, globals_=bytes(32))))


@pytest.mark.parametrize("upload", [Upload(1, 0, content(9)), Upload(2, 0, content(0)), Upload(1, 0, b"junk")])
def test_validity_of_uploads(bench: Bench, upload: Upload) -> None:
    """Not what the client sent; of another round; inadmissible."""
    message = bench.said(~0, upload)
    bench.does(3, Broadcast(message))
    if upload.content == b"junk":
        bench.observer.seen.uploads[message.digest] = message
    entries = tuple(sorted([(0, message.digest), *bench.entries[1:]]))
    lists = tuple(bench.said(s, List(1, s, entries)) for s in range(3))
    with bench.breaks("validity"):
        bench.decides(0, bench.proposed(lists))


def test_censorship(bench: Bench) -> None:
    for server in (0, 1):
        bench.says(server, List(1, server, bench.entries))
    lists = tuple(bench.said(s, List(1, s, bench.entries[1:])) for s in range(3))
    with bench.breaks("censorship"):
        bench.decides(0, bench.proposed(lists))


def test_an_equivocator_may_be_left_out() -> None:
    bench = Bench()
    bench.observer.seen.signed[1, 0].add(bytes(32))
    for server in (0, 1):
        bench.says(server, List(1, server, bench.entries))
    bench.decides(0, bench.proposed(tuple(bench.said(s, List(1, s, bench.entries[1:])) for s in range(3))))


def test_double_sign(bench: Bench) -> None:
    bench.says(0, ViewChange(1, 1, 0, None, None))
    bench.says(0, ViewChange(1, 2, 0, None, None))
    bench.says(0, List(1, 0, bench.entries))
    with bench.breaks("double-sign"):
        bench.says(0, List(1, 0, bench.entries[:3]))
    with bench.breaks("double-sign"):
        bench.says(~0, Upload(1, 0, content(77)))


def test_left_view(bench: Bench) -> None:
    bench.says(0, ViewChange(1, 2, 0, None, None))
    for body in (Commit(1, 1, bytes(32), 0), Prepare(1, 0, bytes(32), 0)):
        with bench.breaks("left-view"):
            bench.says(0, body)


def test_leader(bench: Bench) -> None:
    proposal = bench.proposed(bench.lists[:3])
    bench.does(3, Broadcast(bench.said(3, replace(proposal, server=3))))
    value = proposal.record.value(bench.rules.run)
    with bench.breaks("leader"):
        bench.says(0, Prepare(1, 0, value, 0))
    bench.does(1, Persist(bench.said(1, proposal)))
    bench.says(2, Prepare(1, 0, value, 2))


def test_durability(bench: Bench) -> None:
    with bench.breaks("durability"):
        bench.does(0, Broadcast(bench.lists[0]), Persist(bench.lists[0]))
    with bench.breaks("durability"):
        bench.does(0, Send(~0, bench.said(0, Receipt(1, 0, *bench.entries[0]))))


def test_promise(bench: Bench) -> None:
    receipt = bench.said(0, Receipt(1, 0, *bench.entries[0]))
    bench.does(0, Persist(bench.uploads[0]), Send(~0, receipt))
    with bench.breaks("promise"):
        bench.says(0, List(1, 0, bench.entries[1:]))
    bench.says(1, List(1, 1, bench.entries[1:]))
    with bench.breaks("promise"):
        bench.does(1, Persist(bench.uploads[0]), Send(~0, bench.said(1, Receipt(1, 1, *bench.entries[0]))))
    with bench.breaks("promise"):
        bench.says(2, List(1, 2, ()))


def test_motions_do_not_make_up_for_clients(bench: Bench) -> None:
    motion = bench.said(~6, Upload(1, 6, content(1)))
    bench.does(2, Persist(motion), Broadcast(motion))
    with bench.breaks("promise"):
        bench.says(2, List(1, 2, ((6, motion.digest),)))


def test_two_motions(bench: Bench) -> None:
    first, second = (bench.said(~6, Upload(1, 6, content(k))) for k in range(2))
    with bench.breaks("accusation"):
        bench.does(0, Accused(bench.rules.unsigned(Evidence(1, first, second))))
    with bench.breaks("durability"):
        bench.does(2, Broadcast(first))
    bench.does(2, Persist(first))
    with bench.breaks("double-sign"):
        bench.does(2, Persist(second))


def test_over(bench: Bench) -> None:
    bench.observer.chain.application = Toy(1)
    proposal = bench.proposed(bench.lists[:3])
    bench.decides(1, proposal)
    bench.says(1, ViewChange(2, 1, 1, None, bench.certificate(proposal)))
    outcome = bench.observer.chain.outcomes[1]
    bench.does(0, Decided(bench.certificate(proposal), outcome, ()))
    with bench.breaks("over"):
        bench.says(0, ViewChange(2, 1, 0, None, bench.certificate(proposal)))


def test_who_has_lost_its_log_must_make_durable_anew_and_is_held_to_what_it_said(bench: Bench) -> None:
    proposal = bench.proposed(bench.lists[:3])
    bench.says(0, List(1, 0, bench.entries))
    bench.decides(0, proposal)
    bench.observer.forgot(0)
    bench.decides(0, proposal)
    with bench.breaks("durability"):
        bench.does(0, Broadcast(bench.lists[0]))
    with bench.breaks("double-sign"):
        bench.says(0, List(1, 0, bench.entries[1:]))


def test_accusation(bench: Bench) -> None:
    two = [bench.said(3, Prepare(1, 0, bytes([k]) * 32, 3)) for k in range(2)]
    bench.does(0, Accused(bench.rules.unsigned(Evidence(1, *two))))
    assert bench.observer.counted()["evidence of two PREPARE"] == 1
    honest = [bench.said(1, Prepare(1, 0, bytes([k]) * 32, 1)) for k in range(2)]
    later = bench.said(3, Prepare(1, 1, bytes(32), 3))
    forged = Message(two[0].run, two[0].body, two[0].raw, bytes(64))
    for first, second in (honest, (two[0], two[0]), (two[0], later), (forged, two[1])):
        with bench.breaks("accusation"):
            bench.does(0, Accused(bench.rules.unsigned(Evidence(1, first, second))))


def test_progress_in_views(bench: Bench) -> None:
    bench.observer.most_views = 3
    bench.says(0, ViewChange(1, 7, 0, None, None))
    bench.says(1, ViewChange(1, 6, 1, None, None))
    bench.observer.calm = lambda: True
    bench.says(0, ViewChange(1, 9, 0, None, None))
    with bench.breaks("progress"):
        bench.says(0, ViewChange(1, 10, 0, None, None))


def test_progress_together(bench: Bench) -> None:
    """Two others have asked for view 4: nobody honest goes to view 3 then."""
    for other in (1, 2):
        bench.does(0, event=Received(other, bench.said(other, ViewChange(1, 4, other, None, None))))
    with bench.breaks("progress"):
        bench.says(0, ViewChange(1, 3, 0, None, None))
    bench.does(0, event=Start())
    bench.says(0, ViewChange(1, 2, 0, None, None))


def test_every_server_is_looked_at_now_and_then(bench: Bench) -> None:
    for _ in range(4):
        bench.does(0)
        bench.does(1)
    assert bench.looked == [0, 1]


class Deaf(Replica):
    """Takes no view changes, sends nothing again, keeps all it hears, and falls over a certificate."""

    flaw = ""

    def step(self, event: Event) -> list[Effect]:
        if self.flaw == "exception" and self.round == 2:
            raise KeyError("round 2")
        if self.flaw == "bounded" and isinstance(event, Received):
            self.heap = [*getattr(self, "heap", []), event.message]
        effects = super().step(event)
        return [] if self.flaw == "progress" and isinstance(event, Expired) else effects


@pytest.mark.parametrize("flaw", ["exception", "bounded", "progress"])
def test_flaws_of_a_replica_itself(flaw: str) -> None:
    def found(seed: int) -> Report:
        return run(
            replace(PLAIN, seed=seed, rounds=20, faulty_clients=((0, "late"),)), replica=type("It", (Deaf,), {"flaw": flaw})
        )

    names = {report.violation.name for seed in range(3) if (report := found(seed)).violation is not None}
    assert names == {flaw}


def test_every_invariant_is_broken_above() -> None:
    """By its name, in this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in INVARIANTS)
