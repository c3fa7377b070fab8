"""One schedule, run until all is quiet and watched all the while: what was exercised, and the invariant that broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from fedrfq.consensus.client import Client
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Decided, LeftOut, Submit
from fedrfq.consensus.messages import Message, PartKind, Prepare, Upload, UploadList
from fedrfq.consensus.rejoin import lost
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster, Scheme, Signer
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS, Ring
from fedrfq.simulator.fuzz.bounds import most_messages, most_ms, most_views
from fedrfq.simulator.fuzz.ideal_signatures import WEAK, IdealSignatures
from fedrfq.simulator.fuzz.invariants import Observer
from fedrfq.simulator.fuzz.schedule import Schedule, draw
from fedrfq.simulator.fuzz.toy import MOST, Toy, content
from fedrfq.simulator.fuzz.transcript import Transcript
from fedrfq.simulator.violation import Violation
from fedrfq.simulator.party import Crash, SimulatedMachine, SimulatedParty
from fedrfq.simulator.world import World

_MOST_EVENTS = 60_000


class PartyKeys(Scheme, Protocol):
    """Signatures with keys for everyone: servers by number, client k by ~k."""

    def key(self, party: int) -> bytes: ...

    def signer(self, key: bytes) -> Signer: ...


@dataclass(frozen=True)
class ScheduleReport:
    seed: int
    violation: Violation | None
    exercised: Counter[str]
    events: int
    transcript: str = ""


def run(
    schedule: Schedule,
    replica: type[Replica] = Replica,
    rules: type[Rules] = Rules,
    client: type[Client] = Client,
    scheme: PartyKeys | None = None,
    wire: bool = False,
    trace: bool = False,
) -> ScheduleReport:
    """`replica`, `rules` and `client` are those of the honest; the faulty always know the true ones."""
    trial = ScheduleRun(schedule, replica, rules, client, scheme or IdealSignatures())
    trial.world.wire = wire
    if trace:
        transcript = Transcript()
    else:
        transcript = None
    trial.world.trace = transcript
    violation = None
    try:
        trial.run()
    except Violation as found:
        violation = found
    exercised = +trial.exercised()
    events = trial.world.events
    vars(
        trial
    ).clear()  # its parties refer back to it: so all of it is freed now, and nothing is left to the collector
    return ScheduleReport(
        schedule.seed, violation, exercised, events, transcript.text() if transcript else ""
    )


class ScheduleRun:
    """A schedule brought to life."""

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
        self.application = Toy(schedule.rounds if schedule.ends else None)
        self.rng = Random(schedule.seed ^ 0x5EED)
        self.roster = self._roster()
        self.rules = rules(self.roster)
        faulty = {server for server, _ in schedule.behaviours} | {
            ~k for k, _ in schedule.faulty_clients
        }
        parties = [*range(schedule.n), *(~k for k in range(schedule.clients))]
        honest = [party for party in parties if party not in faulty]
        self.observer = Observer(self.roster, self.application, honest)
        self.world = World(schedule.n, schedule.clients, schedule.links, self.rng, self.observer)
        self.ring = self._ring(faulty)
        self._people(replica, client, faulty)
        self.waiting = set(honest)
        self._set_bounds()

    def _roster(self) -> Roster:
        schedule = self.schedule
        keys = self.keys
        servers = tuple(keys.key(server) for server in range(schedule.n))
        clients = [keys.key(~k) for k in range(schedule.clients)]
        weak = list(clients)
        self.weak_refused = False
        if schedule.weak is not None:
            weak[schedule.weak] = WEAK
        times = {
            "deadline_ms": schedule.deadline_ms,
            "view_ms": schedule.view_ms,
            "resend_ms": schedule.resend_ms,
        }
        try:
            return Roster(keys, servers, tuple(weak), b"toy", schedule.minimum, **times)
        except UserError:
            self.weak_refused = True
            return Roster(keys, servers, tuple(clients), b"toy", schedule.minimum, **times)

    def signer(self, party: int) -> Signer:
        key = self.roster.key(party)
        assert key is not None
        return self.keys.signer(key)

    def _ring(self, faulty: set[int]) -> Ring:
        signers = {party: self.signer(party) for party in faulty}
        # what one has judged, none judges again
        if type(self.rules) is Rules:
            true = self.rules
        else:
            true = Rules(self.roster)
        ring = Ring(true, self.application, signers, self.rng, self._content, self._archive())
        if self.schedule.weak is not None and not self.weak_refused:
            ring.weak = {self.schedule.weak: self.signer(~self.schedule.weak)}
        return ring

    def _archive(self) -> list[Message]:
        """What the same keys signed in another run, in case somebody has kept it."""
        if all(name not in ("replay", "lie") for _, name in self.schedule.behaviours):
            return []
        other = Rules(replace(self.roster, purpose=b"another run"))
        uploads = [
            other.signed(Upload(round_, k, self._content()), self.signer(~k))
            for k in range(self.schedule.clients)
            for round_ in range(1, self.schedule.rounds + 1)
        ]
        entries = tuple((k, bytes(32)) for k in range(self.schedule.clients))
        lists = [
            other.signed(UploadList(1, s, entries), self.signer(s)) for s in range(self.schedule.n)
        ]
        votes = [
            other.signed(Prepare(1, 0, bytes(32), s), self.signer(s))
            for s in range(self.schedule.n)
        ]
        return uploads + lists + votes

    def _content(self) -> bytes:
        return content(int(self.rng.random() * MOST))

    def _people(self, replica: type[Replica], client: type[Client], faulty: set[int]) -> None:
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
        for crash in self.schedule.crashes:
            if crash.party not in faulty:
                self.world.nodes[crash.party].crashes.append(crash)

    def _server(
        self, server: int, replica: type[Replica]
    ) -> Callable[[list[Message]], SimulatedMachine]:
        return lambda log: replica(self.rules, server, self.signer(server), self.application, log)

    def _faulty_server(self, server: int, name: str) -> Callable[[list[Message]], SimulatedMachine]:
        return lambda log: BEHAVIOURS[name](self.ring, server)

    def _client(self, k: int, client: type[Client]) -> Callable[[list[Message]], SimulatedMachine]:
        wants: tuple[PartKind, ...] = ()
        if self.schedule.wants:
            wants = (PartKind.GLOBALS, PartKind.VERDICTS)
        return lambda log: client(self.rules, k, self.signer(~k), log, wants)

    def _faulty_client(self, k: int, name: str) -> Callable[[list[Message]], SimulatedMachine]:
        return lambda log: CLIENTS[name](self.ring, k)

    def _set_bounds(self) -> None:
        observer = self.observer
        calm_ms = self.schedule.links.calm_ms
        observer.most_views = most_views(self.roster, self.schedule.links.slow_ms)
        observer.most_held = most_messages(self.schedule.n, self.schedule.clients)
        observer.calm = lambda: self.world.now >= calm_ms
        self.world.clock_jumps = self.schedule.jumps

    def run(self) -> None:
        world = self.world
        world.on_decided = self._decided
        world.on_restart = self._restarted
        world.on_crash = self._crashed
        world.start()
        for k in range(self.schedule.clients):
            self._train(~k, 1)
        for server in range(self.schedule.n):
            self._move(server, 1)
        if not world.run(most_ms(self.schedule, self.roster), _MOST_EVENTS):
            raise Violation(
                "progress",
                f"not done at {world.now} ms, after {world.events} events: {sorted(self.waiting)}",
            )
        self.observer.ended(world.nodes.values())

    def _train(self, party: int, round_: int) -> None:
        """A client's result takes its time; computed again it is another."""
        delay = int(self.rng.random() * self.schedule.training_ms)
        self.world.give(party, Submit(round_, self._content()), delay)

    def _move(self, server: int, round_: int) -> None:
        """Now and then a server has something to say as a client."""
        if self.schedule.change_proposals and self.rng.random() < self.schedule.change_proposals:
            self._train(server, round_)

    def _decided(self, node: SimulatedParty, decided: Decided) -> None:
        round_ = decided.certificate.record.round
        if node.party < 0 and self._left_out(~node.party, round_):
            self.world.give(node.party, LeftOut(round_))
        if round_ >= self.schedule.rounds:
            self._finished(node)
        if (
            round_ >= self.schedule.rounds + self.schedule.ends
        ):  # who does not know that all is over goes on
            return
        if node.party >= 0:
            for server in (node.party, *self.ring.servers):
                self._move(server, round_ + 1)
        elif decided.outcome is None:
            self._train(node.party, round_ + 1)

    def _left_out(self, client: int, round_: int) -> bool:
        """As verdicts would tell."""
        entries = self.observer.chain.sets.get(round_)
        return entries is not None and client not in dict(entries)

    def _crashed(self, node: SimulatedParty, crash: Crash) -> list[Message]:
        """What is left of a log: nothing but that it is lost, all of it, or what matters of it."""
        if crash.forgets:
            self.world.counts["logs lost"] += 1
            self.observer.forgot(node.party)
            return [lost(self.rules, self.rng.randbytes(32))]
        if self.rng.random() < 0.5:
            self.world.counts["logs cut to their essence"] += 1
            return compacted(node.log)
        return node.log

    def _restarted(self, node: SimulatedParty) -> None:
        round_ = getattr(node.machine, "round")  # noqa: B009
        if round_ > self.schedule.rounds:
            self._finished(node)
        elif node.party < 0:
            self._train(node.party, round_)
        else:
            self._move(node.party, round_)

    def _finished(self, node: SimulatedParty) -> None:
        """Done with the last round, once its outcome, or what a client wants of it, is there."""
        machine: Any = node.machine
        if node.honest and (machine.outcome is None if node.party >= 0 else machine.lacking()):
            return
        self.waiting.discard(node.party)
        self.world.done = not self.waiting

    def exercised(self) -> Counter[str]:
        world = self.world
        network = self.world.network
        schedule = self.schedule
        counts = self.observer.counted()
        counts.update(world.counts)
        counts.update({"lost": network.lost, "doubled": network.doubled, "cut off": network.cut})
        counts.update(
            {"partitions": len(schedule.links.splits), "weak key refused": int(self.weak_refused)}
        )
        counts.update([f"server {name}" for _, name in schedule.behaviours])
        counts.update([f"client {name}" for _, name in schedule.faulty_clients])
        for node in world.nodes.values():
            if node.honest:
                counts.update({f"ignored: {why}": n for why, n in node.machine.ignored.items()})  # type: ignore[attr-defined]
        counts["messages"] = world.messages
        return counts


__all__ = ["PartyKeys", "Schedule", "ScheduleReport", "draw", "run"]
