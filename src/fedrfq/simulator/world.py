"""Virtual time, in which servers and clients run: it carries out their effects, brings their messages, crashes them.

It knows nothing of how a schedule is drawn or what is computed: the fuzzer and a run's simulated committee use it alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from fedrfq.consensus.events import (
    Accused,
    Broadcast,
    Decided,
    Event,
    Expired,
    Persist,
    Publish,
    Received,
    Send,
    SetTimer,
    Start,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import Message, decode
from fedrfq.consensus.roster import served
from fedrfq.consensus.wire import Refused
from fedrfq.simulator.message_text import shown
from fedrfq.simulator.network import LinkFaults, Network
from fedrfq.simulator.party import (
    Action,
    Crash,
    RawBytes,
    Relay,
    SimulatedMachine,
    SimulatedParty,
    Watch,
    name,
)
from fedrfq.simulator.violation import Violation


class _Ring(NamedTuple):
    """A timer that runs out, if it has not been set anew: what its node remembers is the number of the last setting."""

    timer: Timer


class _Restart(NamedTuple):
    pass


_RINGS = {timer: _Ring(timer) for timer in Timer}


class World:
    """Add the nodes, `start`, and `run` until `done` is set; `on_decided` and `on_restart` are the driver's to hear, and
    `on_crash` its to say what is left of the log."""

    def __init__(
        self, servers: int, clients: int, links: LinkFaults, rng: Random, watch: Watch | None = None
    ) -> None:
        self.servers = range(servers)
        self.clients = [~k for k in range(clients)]
        self._served = {
            server: [~k for k in served(server, servers, clients)] for server in self.servers
        }
        self._others = {
            party: [s for s in range(servers) if s != party]
            for party in [*self.servers, *self.clients]
        }
        self.rng = rng
        self.network = Network(links, rng)
        self.watch = watch
        self.nodes: dict[int, SimulatedParty] = {}
        self.now = self.events = self._number = 0
        self.done = self.wire = self.measured = False
        self.jumps = 0.0  # before the network is calm, the share of timers that fire early or late
        self.counts: Counter[str] = Counter()
        self.messages = 0
        self.bytes = 0
        self.on_decided: Callable[[SimulatedParty, Decided], None] = lambda node, decided: None
        self.on_restart: Callable[[SimulatedParty], None] = lambda node: None
        self.on_crash: Callable[[SimulatedParty, Crash], list[Message]] = lambda node, crash: (
            node.log
        )
        self.trace: Callable[[int, SimulatedParty, Event, Sequence[Action]], None] | None = None
        self._heap: list[tuple[int, int, int, Event | _Ring | _Restart | bytes]] = []

    def add(
        self,
        party: int,
        make: Callable[[list[Message]], SimulatedMachine],
        log: Iterable[Message] = (),
        honest: bool = True,
    ) -> SimulatedParty:
        """A party; `make` is given the log, at first and after each crash."""
        self.nodes[party] = node = SimulatedParty(party, make, log, honest)
        return node

    def start(self) -> None:
        for party in self.nodes:
            self.give(party, Start())

    def give(self, party: int, event: Event, delay_ms: int = 0) -> None:
        """Something that is not a message happens to a party."""
        self._push(delay_ms, party, event)

    def run(self, most_ms: int, most_events: int) -> bool:
        """Until `done`; not if that takes too long, or if nothing is left to happen."""
        heap = self._heap
        nodes = self.nodes
        step = self._step
        while heap and not self.done and self.events < most_events:
            now, number, party, event = heappop(heap)
            if now > most_ms:
                break
            self.now = now
            node = nodes[party]
            if type(event) is Received and node.up:  # as almost always
                step(node, event)
            else:
                self._happen(node, number, event)
        return self.done

    def _push(self, delay_ms: int, party: int, event: Event | _Ring | _Restart | bytes) -> None:
        self._number += 1
        heappush(self._heap, (self.now + delay_ms, self._number, party, event))

    def _happen(
        self, node: SimulatedParty, number: int, event: Event | _Ring | _Restart | bytes
    ) -> None:
        if type(event) is _Restart:
            self._restart(node)
        elif not node.up:
            self.counts["to one away"] += 1
        elif type(event) is _Ring:
            self._ring(node, number, event.timer)
        elif type(event) is bytes:
            self._arrive(node, event)
        else:
            self._step(node, event)  # type: ignore[arg-type]

    def _ring(self, node: SimulatedParty, number: int, timer: Timer) -> None:
        if node.timers.get(timer) == number:
            del node.timers[timer]
            self._step(node, Expired(timer))

    def _arrive(self, node: SimulatedParty, data: bytes) -> None:
        """Bytes: the sender's number, and what ought to be a message."""
        try:
            message = decode(data[4:])
        except Refused:
            self.counts["bytes refused"] += 1
        else:
            self._step(node, Received(int.from_bytes(data[:4], "little", signed=True), message))

    def _step(self, node: SimulatedParty, event: Event) -> None:
        self.events += 1
        try:
            actions = node.machine.step(event)
        except Exception as error:
            if not node.honest:
                raise
            raise Violation(
                "exception",
                f"{name(node.party)} at {shown(event)}: {type(error).__name__}: {error}",
            ) from error
        crash = None
        if node.crashes:
            crash, actions = self._crash_due(node, actions)
        if self.trace is not None:
            self.trace(self.now, node, event, actions)
        if self.watch is not None:
            self.watch.acted(node, event, actions)
        for action in actions:
            kind = type(action)
            if kind is Persist:
                node.log.append(action.message)  # type: ignore[union-attr]
            elif kind is Send:
                self._carry(node.party, (action.to,), action.message)  # type: ignore[union-attr]
            else:
                _DO[kind](self, node, action)
        if crash is not None:
            self._crash(node, crash)

    def _crash_due(
        self, node: SimulatedParty, actions: Sequence[Action]
    ) -> tuple[Crash | None, Sequence[Action]]:
        """The crash that happens in this step, if one does, and what is done before."""
        node.steps += 1
        for crash in node.crashes:
            if crash.step <= node.steps and (cut := crash.cut(actions)) is not None:
                node.crashes.remove(crash)
                return crash, actions[:cut]
        return None, actions

    def _crash(self, node: SimulatedParty, crash: Crash) -> None:
        self.counts["crashes"] += 1
        node.up, node.log = False, self.on_crash(node, crash)
        node.timers.clear()
        self._push(crash.away_ms, node.party, _Restart())

    def _restart(self, node: SimulatedParty) -> None:
        self.counts["restarts"] += 1
        node.up, node.machine = True, node.make(node.log)
        self._step(node, Start())
        self.on_restart(node)

    # Effects

    def _broadcast(self, node: SimulatedParty, effect: Broadcast) -> None:
        self._carry(node.party, self._others[node.party], effect.message)

    def _publish(self, node: SimulatedParty, effect: Publish) -> None:
        self._carry(node.party, self._served[node.party], effect.message)

    def _relay(self, node: SimulatedParty, effect: Relay) -> None:
        self._carry(effect.origin, (effect.to,), effect.message)

    def _noise(self, node: SimulatedParty, effect: RawBytes) -> None:
        if self.wire:
            self._push(1, effect.to, _packed(node.party, effect.data))

    def _carry(self, origin: int, targets: Sequence[int], message: Message) -> None:
        event: Received | bytes
        if self.wire:
            event = _packed(origin, message.wire)
        else:
            event = Received(origin, message)
        now = self.now
        number = self._number
        heap = self._heap
        network = self.network
        self.messages += len(targets)
        if self.measured:
            self.bytes += len(message.wire) * len(targets)
        if now >= network.calm:  # what `delays` would say, without asking for every copy
            soon = now + network.quick
            span = network.span
            random = network.random
            for to in targets:
                number += 1
                heappush(heap, (soon + int(random() * span), number, to, event))
        else:
            for to in targets:
                for delay in network.delays(now, origin, to, message):
                    number += 1
                    heappush(heap, (now + delay, number, to, event))
        self._number = number

    def _set_timer(self, node: SimulatedParty, effect: SetTimer) -> None:
        timer, delay = effect
        if delay is None:
            node.timers.pop(timer, None)
            return
        if self.jumps and self.now < self.network.links.calm_ms and self.rng.random() < self.jumps:
            self.counts["clock jumps"] += 1
            delay = int(delay * 3 * self.rng.random())
        self._push(delay, node.party, _RINGS[timer])
        node.timers[timer] = self._number

    def _decided(self, node: SimulatedParty, effect: Decided) -> None:
        node.decided[effect.certificate.record.round] = effect
        self.on_decided(node, effect)

    def _accused(self, node: SimulatedParty, effect: Accused) -> None:
        node.accused.append(effect.evidence)

    def _waiting(self, node: SimulatedParty, effect: Waiting) -> None:
        self.counts["waits for clients"] += 1


_DO: dict[type, Callable[..., None]] = {  # besides the two that are done most often
    Broadcast: World._broadcast,
    Publish: World._publish,
    Relay: World._relay,
    RawBytes: World._noise,
    SetTimer: World._set_timer,
    Decided: World._decided,
    Accused: World._accused,
    Waiting: World._waiting,
}


def _packed(origin: int, data: bytes) -> bytes:
    return origin.to_bytes(4, "little", signed=True) + data


__all__ = [
    "Action",
    "Crash",
    "RawBytes",
    "Relay",
    "SimulatedMachine",
    "SimulatedParty",
    "Watch",
    "World",
    "name",
]
