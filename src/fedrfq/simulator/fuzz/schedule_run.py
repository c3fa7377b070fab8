"""Run one schedule until all is quiet, with the observer watching every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from fedrfq.consensus.client import Client
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Decided, LeftOut, Propose, Submit
from fedrfq.consensus.evidence import max_proofs
from fedrfq.consensus.messages import Message, PartKind, Prepare, Upload, UploadList
from fedrfq.consensus.rejoin import lost_log_mark
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster, Scheme, Signer
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.sizes import sizes_of
from fedrfq.errors import UserError
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS, Ring
from fedrfq.simulator.fuzz.bounds import max_messages, max_ms, max_views
from fedrfq.simulator.fuzz.ideal_signatures import WEAK, IdealSignatures
from fedrfq.simulator.fuzz.invariants import Observer
from fedrfq.simulator.fuzz.schedule import Schedule, draw
from fedrfq.simulator.fuzz.storage_bounds import StorageBounds
from fedrfq.simulator.fuzz.toy import (
    CONTENT_BYTES,
    MAX_NUMBER,
    PART_BYTES,
    Toy,
    content,
    successor,
)
from fedrfq.simulator.fuzz.transcript import Transcript
from fedrfq.simulator.party import Crash, SimulatedMachine, SimulatedParty
from fedrfq.simulator.violation import Violation
from fedrfq.simulator.world import World

_MAX_EVENTS = 60_000
_SUCCESSORS = 4  # that servers propose

MakeMachine = Callable[[list[Message]], SimulatedMachine]


class PartyKeys(Scheme, Protocol):
    """A signature scheme with keys for everyone: servers by number, client k by ~k."""

    def key(self, party: int) -> bytes:
        """Return the public key of a party."""
        ...

    def signer(self, key: bytes) -> Signer:
        """Return what the holder of a key signs with."""
        ...


@dataclass(frozen=True)
class ScheduleReport:
    """What a schedule exercised, and the invariant that broke, if one did."""

    seed: int
    violation: Violation | None
    exercised: Counter[str]
    events: int
    transcript: str = ""


def run(
    schedule: Schedule,
    *,
    replica: type[Replica] = Replica,
    rules: type[Rules] = Rules,
    client: type[Client] = Client,
    scheme: PartyKeys | None = None,
    wire: bool = False,
    trace: bool = False,
) -> ScheduleReport:
    """Run a schedule and report on it.

    The honest parties use `replica`, `rules` and `client`, which may be mutants; the faulty always
    use the true ones. With `wire`, messages travel as bytes; with `trace`, the report has a
    transcript.
    """
    schedule_run = ScheduleRun(schedule, replica, rules, client, scheme or IdealSignatures())
    schedule_run.world.wire = wire
    transcript = Transcript()
    if trace:
        schedule_run.world.trace = transcript
    violation = None
    try:
        schedule_run.run()
    except Violation as broken:
        violation = broken
    exercised = +schedule_run.exercised()
    events = schedule_run.world.events
    # The parties refer back to the run. Without these references all of it is freed at once, and
    # nothing is left to the garbage collector.
    vars(schedule_run).clear()
    return ScheduleReport(schedule.seed, violation, exercised, events, transcript.text())


class ScheduleRun:
    """A schedule brought to life: its world, its parties, and the observer that judges them."""

    def __init__(
        self,
        schedule: Schedule,
        replica: type[Replica],
        rules: type[Rules],
        client: type[Client],
        keys: PartyKeys,
    ) -> None:
        self.schedule = schedule
        self.keys = keys
        self.application = Toy()
        # Not the generator that drew the schedule, so that the two do not depend on each other.
        self.rng = Random(schedule.seed ^ 0x5EED)
        self.weak_refused = False
        self.roster = self._make_roster()
        self.rules = rules(self.roster)
        faulty_servers = {server for server, _ in schedule.behaviours}
        faulty = faulty_servers | {~k for k, _ in schedule.faulty_clients}
        parties = [*range(schedule.n), *(~k for k in range(schedule.clients))]
        honest = [party for party in parties if party not in faulty]
        self.observer = Observer(self.roster, self.application, honest)
        self.world = World(schedule.n, schedule.clients, schedule.links, self.rng, self.observer)
        self.ring = self._make_ring(faulty)
        self._add_parties(replica, client, faulty)
        self.waiting = set(honest)
        self._set_bounds()

    def _make_roster(self) -> Roster:
        """Return the roster, with the weak key only if the scheme does not refuse it."""
        clients = [self.keys.key(~k) for k in range(self.schedule.clients)]
        if self.schedule.weak_client is None:
            return self._roster_of(clients)
        with_weak = list(clients)
        with_weak[self.schedule.weak_client] = WEAK
        try:
            return self._roster_of(with_weak)
        except UserError:
            self.weak_refused = True
            return self._roster_of(clients)

    def _roster_of(self, clients: list[bytes]) -> Roster:
        schedule = self.schedule
        return Roster(
            self.keys,
            tuple(self.keys.key(server) for server in range(schedule.n)),
            tuple(clients),
            b"toy",
            schedule.minimum,
            deadline_ms=schedule.deadline_ms,
            view_ms=schedule.view_ms,
            resend_ms=schedule.resend_ms,
        )

    def _signer(self, party: int) -> Signer:
        key = self.roster.key(party)
        assert key is not None
        return self.keys.signer(key)

    def _make_ring(self, faulty: set[int]) -> Ring:
        # The faulty use the true rules. Where the honest do too, they share them, and with them
        # the cache: no message is verified twice.
        true_rules = self.rules
        if type(self.rules) is not Rules:
            true_rules = Rules(self.roster)
        ring = Ring(
            true_rules,
            self.application,
            {party: self._signer(party) for party in faulty},
            self.rng,
            mint_content=self._draw_content,
            archive=self._make_archive(),
        )
        weak_client = self.schedule.weak_client
        if weak_client is not None and not self.weak_refused:
            ring.weak = {weak_client: self._signer(~weak_client)}
        return ring

    def _make_archive(self) -> list[Message]:
        """Sign messages of another run with the same keys, if anybody is going to replay them."""
        if not {"replay", "lie"}.intersection(name for _, name in self.schedule.behaviours):
            return []
        other = Rules(replace(self.roster, purpose=b"another run"))
        servers = range(self.schedule.n)
        clients = range(self.schedule.clients)
        uploads = [
            other.signed(Upload(round_, k, self._draw_content()), self._signer(~k))
            for k in clients
            for round_ in range(1, self.schedule.rounds + 1)
        ]
        entries = tuple((k, bytes(32)) for k in clients)
        lists = [other.signed(UploadList(1, s, entries), self._signer(s)) for s in servers]
        votes = [other.signed(Prepare(1, 0, bytes(32), s), self._signer(s)) for s in servers]
        return uploads + lists + votes

    def _draw_content(self) -> bytes:
        return content(int(self.rng.random() * MAX_NUMBER))

    def _add_parties(self, replica: type[Replica], client: type[Client], faulty: set[int]) -> None:
        behaviours = dict(self.schedule.behaviours)
        faulty_clients = dict(self.schedule.faulty_clients)
        for server in range(self.schedule.n):
            if server in faulty:
                make = self._faulty_server(server, behaviours[server])
            else:
                make = self._server(server, replica)
            self.world.add(server, make, honest=server not in faulty)
        for k in range(self.schedule.clients):
            if ~k in faulty:
                make = self._faulty_client(k, faulty_clients[k])
            else:
                make = self._client(k, client)
            self.world.add(~k, make, honest=~k not in faulty)
        # Crashes are drawn for all clients, but a faulty one has no log to come back with.
        for crash in self.schedule.crashes:
            if crash.party not in faulty:
                self.world.nodes[crash.party].crashes.append(crash)

    def _server(self, server: int, replica: type[Replica]) -> MakeMachine:
        return lambda log: replica(self.rules, server, self._signer(server), self.application, log)

    def _faulty_server(self, server: int, name: str) -> MakeMachine:
        return lambda log: BEHAVIOURS[name](self.ring, server)

    def _client(self, k: int, client: type[Client]) -> MakeMachine:
        fetched: tuple[PartKind, ...] = ()
        if self.schedule.clients_fetch:
            fetched = (PartKind.GLOBALS, PartKind.VERDICTS, PartKind.PUBLIC, PartKind.SUCCESSOR)
        return lambda log: client(self.rules, k, self._signer(~k), log, fetched)

    def _faulty_client(self, k: int, name: str) -> MakeMachine:
        return lambda log: CLIENTS[name](self.ring, k)

    def _set_bounds(self) -> None:
        observer = self.observer
        calm_ms = self.schedule.links.calm_ms
        observer.max_views = max_views(self.roster, self.schedule.links.slow_ms)
        observer.max_held = max_messages(self.schedule.n, self.schedule.clients)
        sizes = sizes_of(self.roster, CONTENT_BYTES)
        observer.bound_storage(StorageBounds(self.roster, sizes, PART_BYTES))
        observer.calm = lambda: self.world.now >= calm_ms
        self.world.clock_jumps = self.schedule.clock_jumps

    def run(self) -> None:
        """Run until every honest party has finished the last round, or raise a `Violation`."""
        world = self.world
        world.on_decided = self._on_decided
        world.on_restart = self._on_restart
        world.on_crash = self._on_crash
        world.start()
        for k in range(self.schedule.clients):
            self._train(~k, 1)
        for server in range(self.schedule.n):
            self._propose_change(server, 1)
        if not world.run(max_ms(self.schedule, self.roster), _MAX_EVENTS):
            raise Violation(
                "progress",
                f"{sorted(self.waiting)} not done at {world.now} ms, after {world.events} events",
            )
        self._wait_for_evidence()
        self.observer.finish(world.nodes.values())

    def _wait_for_evidence(self) -> None:
        """Go on until all evidence is handed on that should be, or for as long as it may take."""
        world = self.world
        until_ms = world.now
        # A question and its answer for each proof, and a last question.
        for _ in range(1 + max_proofs(self.roster)):
            if not self.observer.evidence.missed():
                return
            until_ms += 2 * self.schedule.links.slow_ms
            world.done = False
            world.run(until_ms, 2 * _MAX_EVENTS)

    def _train(self, party: int, round_: int) -> None:
        """Submit new content after a while; who trains again after a crash gets another result."""
        delay = int(self.rng.random() * self.schedule.training_ms)
        self.world.give(party, Submit(round_, self._draw_content()), delay)

    def _propose_change(self, server: int, round_: int) -> None:
        """Sometimes let a server propose a change: in the last round the same as all others."""
        schedule = self.schedule
        if schedule.ends and round_ >= schedule.rounds:
            self.world.give(server, Propose(round_, successor(0)))
        elif schedule.change_proposals and self.rng.random() < schedule.change_proposals:
            # Of few, so that now and then enough servers propose the same.
            content = successor(int(self.rng.random() * _SUCCESSORS))
            delay = int(self.rng.random() * schedule.training_ms)
            self.world.give(server, Propose(round_, content), delay)

    def _on_decided(self, node: SimulatedParty, decided: Decided) -> None:
        round_ = decided.certificate.record.round
        if node.party < 0 and self._is_left_out(~node.party, round_):
            self.world.give(node.party, LeftOut(round_))
        if round_ >= self.schedule.rounds or decided.certificate.record.ends_run():
            self._finish(node)
        # Where the run is over, go on for a round: servers must refuse to take part.
        if round_ >= self.schedule.rounds + self.schedule.ends:
            return
        if node.party >= 0:
            for server in (node.party, *self.ring.servers):
                self._propose_change(server, round_ + 1)
        elif decided.outcome is None:
            self._train(node.party, round_ + 1)

    def _is_left_out(self, client: int, round_: int) -> bool:
        """Return what a client would read in the verdicts: whether its upload does not count."""
        inputs = self.observer.chain.sets.get(round_)
        return inputs is not None and client not in dict(inputs.uploads)

    def _on_crash(self, node: SimulatedParty, crash: Crash) -> list[Message]:
        """Return what is left of a log: the mark that it is lost, all of it, or its compaction."""
        self.observer.crashed(node.party)
        if crash.forgets:
            self.world.counts["logs lost"] += 1
            self.observer.forgot(node.party)
            return [lost_log_mark(self.rules, self.rng.randbytes(32))]
        if self.rng.random() < 0.5:
            self.world.counts["logs cut to their essence"] += 1
            return compacted(node.log)
        return node.log

    def _on_restart(self, node: SimulatedParty) -> None:
        machine: Any = node.machine
        if machine.round > self.schedule.rounds or _knows_end(machine):
            self._finish(node)
        elif node.party < 0:
            self._train(node.party, machine.round)
        else:
            self._propose_change(node.party, machine.round)

    def _finish(self, node: SimulatedParty) -> None:
        """Stop waiting for a party once it has all it needs of the last round."""
        if node.honest and self._lacks_outcome(node):
            return
        self.waiting.discard(node.party)
        self.world.done = not self.waiting

    def _lacks_outcome(self, node: SimulatedParty) -> bool:
        machine: Any = node.machine
        if node.party >= 0:
            return machine.outcome is None
        return bool(machine.lacking())

    def exercised(self) -> Counter[str]:
        """Return how often each thing happened; `coverage` says what must have happened."""
        world = self.world
        network = self.world.network
        schedule = self.schedule
        counts = self.observer.counted()
        counts.update(world.counts)
        counts.update({"lost": network.lost, "doubled": network.doubled, "cut off": network.cut})
        counts["partitions"] += len(schedule.links.splits)
        counts["weak key refused"] += int(self.weak_refused)
        counts.update([f"server {name}" for _, name in schedule.behaviours])
        counts.update([f"client {name}" for _, name in schedule.faulty_clients])
        for node in world.nodes.values():
            if node.honest:
                machine: Any = node.machine
                counts.update({f"ignored: {why}": n for why, n in machine.ignored.items()})
        counts["messages"] = world.messages
        return counts


def _knows_end(machine: Client | Replica) -> bool:
    """Return whether the last round that a party knows to be decided ends the run."""
    last = machine.last if isinstance(machine, Client) else machine.chain.get(machine.round - 1)
    return last is not None and last.record.ends_run()


__all__ = ["PartyKeys", "Schedule", "ScheduleReport", "draw", "run"]
