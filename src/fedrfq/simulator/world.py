"""A world in virtual time that runs servers and clients.

It carries out their effects, delivers their messages and crashes them. It knows neither how a
schedule is drawn nor what the parties compute: the fuzzer and a run's simulated committee both use
it.
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
from fedrfq.simulator.message_text import readable
from fedrfq.simulator.network import LinkFaults, Network
from fedrfq.simulator.party import (
    Action,
    Crash,
    RawBytes,
    Relay,
    SimulatedMachine,
    SimulatedParty,
    StepObserver,
    party_name,
)
from fedrfq.simulator.violation import Violation


class _TimerFires(NamedTuple):
    """A timer runs out, unless it was stopped or set again since.

    The party remembers the sequence number of its latest setting (`SimulatedParty.timers`), so a
    timer that was set again needs no removal from the heap.
    """

    timer: Timer


class _Restart(NamedTuple):
    """A crashed party comes back."""


_Happening = Event | _TimerFires | _Restart | bytes
_TIMER_FIRES = {timer: _TimerFires(timer) for timer in Timer}


class World:
    """Runs parties in virtual time: `add` them, `start`, and `run` until `done` is set.

    The driver may set `on_decided` and `on_restart` to be told of these, and `on_crash` to choose
    what is left of a party's log after a crash.
    """

    def __init__(
        self,
        servers: int,
        clients: int,
        links: LinkFaults,
        rng: Random,
        observer: StepObserver | None = None,
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
        self.observer = observer
        self.nodes: dict[int, SimulatedParty] = {}
        self.now = 0
        self.events = 0
        self.done = False
        self.wire = False  # whether messages travel as bytes and are decoded on arrival
        self.measured = False  # whether `bytes` is counted; encoding every message takes time
        self.clock_jumps = 0.0  # the share of timers that fire early or late before it is calm
        self.counts: Counter[str] = Counter()  # the names are part of recorded campaigns
        self.messages = 0
        self.bytes = 0
        self.on_decided: Callable[[SimulatedParty, Decided], None] = lambda node, decided: None
        self.on_restart: Callable[[SimulatedParty], None] = lambda node: None
        self.on_crash: Callable[[SimulatedParty, Crash], list[Message]] = _keep_log
        self.trace: Callable[[int, SimulatedParty, Event, Sequence[Action]], None] | None = None
        # Entries are (time, sequence number, party, what happens). The sequence number is unique:
        # it breaks ties the same way in every run, and what happens is never compared.
        self._heap: list[tuple[int, int, int, _Happening]] = []
        self._sequence = 0

    def add(
        self,
        party: int,
        make_machine: Callable[[list[Message]], SimulatedMachine],
        log: Iterable[Message] = (),
        honest: bool = True,
    ) -> SimulatedParty:
        """Add a party; `make_machine` builds it from its log, now and after each crash."""
        node = SimulatedParty(party, make_machine, log, honest)
        self.nodes[party] = node
        return node

    def start(self) -> None:
        """Give every party its first event."""
        for party in self.nodes:
            self.give(party, Start())

    def give(self, party: int, event: Event, delay_ms: int = 0) -> None:
        """Schedule an event that does not come over the network."""
        self._push(delay_ms, party, event)

    def run(self, max_ms: int, max_events: int) -> bool:
        """Run until `done` is set, and return whether it was.

        It gives up once the virtual time or the number of events is exceeded, or nothing is left
        to happen. It can be called again to go on.
        """
        heap = self._heap
        nodes = self.nodes
        step = self._step
        while heap and not self.done and self.events < max_events:
            now, sequence, party, happening = heappop(heap)
            if now > max_ms:
                heappush(heap, (now, sequence, party, happening))
                break
            self.now = now
            node = nodes[party]
            # The hot path: nearly everything that happens is a message to a party that is up.
            if type(happening) is Received and node.up:
                step(node, happening)
            else:
                self._dispatch(node, sequence, happening)
        return self.done

    def _push(self, delay_ms: int, party: int, happening: _Happening) -> None:
        self._sequence += 1
        heappush(self._heap, (self.now + delay_ms, self._sequence, party, happening))

    def _dispatch(self, node: SimulatedParty, sequence: int, happening: _Happening) -> None:
        if type(happening) is _Restart:
            self._restart(node)
        elif not node.up:
            self.counts["to one away"] += 1
        elif type(happening) is _TimerFires:
            self._fire_timer(node, sequence, happening.timer)
        elif type(happening) is bytes:
            self._receive_bytes(node, happening)
        else:
            self._step(node, happening)  # type: ignore[arg-type]

    def _fire_timer(self, node: SimulatedParty, sequence: int, timer: Timer) -> None:
        if node.timers.get(timer) == sequence:
            del node.timers[timer]
            self._step(node, Expired(timer))

    def _receive_bytes(self, node: SimulatedParty, data: bytes) -> None:
        """Decode what `_frame` wrote: the sender's number, and what ought to be a message."""
        try:
            message = decode(data[4:])
        except Refused:
            self.counts["bytes refused"] += 1
            return
        sender = int.from_bytes(data[:4], "little", signed=True)
        self._step(node, Received(sender, message))

    def _step(self, node: SimulatedParty, event: Event) -> None:
        self.events += 1
        try:
            actions = node.machine.step(event)
        except Exception as error:
            # An adversary that raises is a bug of the simulator, not of the committee.
            if not node.honest:
                raise
            raise Violation(
                "exception",
                f"{party_name(node.party)} at {readable(event)}: {type(error).__name__}: {error}",
            ) from error
        # The observer must see only what is done: a crash cuts the actions off before that.
        crash = None
        if node.crashes:
            crash, actions = self._next_crash(node, actions)
        if self.trace is not None:
            self.trace(self.now, node, event, actions)
        # Judged before any of it is carried out, so that a transcript ends with the violation.
        if self.observer is not None:
            self.observer.observe(node, event, actions)
        # The two most frequent actions are done here, all others are looked up.
        for action in actions:
            kind = type(action)
            if kind is Persist:
                node.log.append(action.message)  # type: ignore[union-attr]
            elif kind is Send:
                self._transmit(node.party, (action.to,), action.message)  # type: ignore[union-attr]
            else:
                _PERFORM[kind](self, node, action)
        if crash is not None:
            self._crash(node, crash)

    def _next_crash(
        self, node: SimulatedParty, actions: Sequence[Action]
    ) -> tuple[Crash | None, Sequence[Action]]:
        """Return the crash that happens in this step, if any, and the actions done before it."""
        node.steps += 1
        for crash in node.crashes:
            if crash.step <= node.steps and (cut := crash.cut(actions)) is not None:
                node.crashes.remove(crash)
                return crash, actions[:cut]
        return None, actions

    def _crash(self, node: SimulatedParty, crash: Crash) -> None:
        self.counts["crashes"] += 1
        node.up = False
        node.log = self.on_crash(node, crash)
        # Messages on their way to the party stay on their way: some arrive after it is back.
        node.timers.clear()
        self._push(crash.away_ms, node.party, _Restart())

    def _restart(self, node: SimulatedParty) -> None:
        self.counts["restarts"] += 1
        node.up = True
        node.machine = node.make_machine(node.log)
        self._step(node, Start())
        self.on_restart(node)

    # Effects

    def _broadcast(self, node: SimulatedParty, effect: Broadcast) -> None:
        self._transmit(node.party, self._others[node.party], effect.message)

    def _publish(self, node: SimulatedParty, effect: Publish) -> None:
        self._transmit(node.party, self._served[node.party], effect.message)

    def _relay(self, node: SimulatedParty, effect: Relay) -> None:
        self._transmit(effect.origin, (effect.to,), effect.message)

    def _send_raw_bytes(self, node: SimulatedParty, effect: RawBytes) -> None:
        if self.wire:
            self._push(1, effect.to, _frame(node.party, effect.data))

    def _transmit(self, origin: int, targets: Sequence[int], message: Message) -> None:
        """Put a message on its way to each target, as often and as late as the network has it."""
        delivery: Received | bytes = Received(origin, message)
        if self.wire:
            delivery = _frame(origin, message.wire)
        now = self.now
        sequence = self._sequence
        heap = self._heap
        network = self.network
        self.messages += len(targets)
        if self.measured:
            self.bytes += len(message.wire) * len(targets)
        # On a calm network this draws what `Network.delays` would, without a call for each copy.
        if now >= network.calm:
            soonest = now + network.quick
            span = network.span
            random = network.random
            for to in targets:
                sequence += 1
                heappush(heap, (soonest + int(random() * span), sequence, to, delivery))
        else:
            for to in targets:
                for delay in network.delays(now, origin, to, message):
                    sequence += 1
                    heappush(heap, (now + delay, sequence, to, delivery))
        self._sequence = sequence

    def _set_timer(self, node: SimulatedParty, effect: SetTimer) -> None:
        timer, delay = effect
        if delay is None:
            node.timers.pop(timer, None)
            return
        stormy = self.clock_jumps and self.now < self.network.links.calm_ms
        if stormy and self.rng.random() < self.clock_jumps:
            self.counts["clock jumps"] += 1
            delay = int(delay * 3 * self.rng.random())
        self._push(delay, node.party, _TIMER_FIRES[timer])
        node.timers[timer] = self._sequence

    def _decided(self, node: SimulatedParty, effect: Decided) -> None:
        node.decided[effect.certificate.record.round] = effect
        self.on_decided(node, effect)

    def _accused(self, node: SimulatedParty, effect: Accused) -> None:
        node.accused.append(effect.evidence)

    def _waiting(self, node: SimulatedParty, effect: Waiting) -> None:
        self.counts["waits for clients"] += 1


# All actions but `Persist` and `Send`, which `World._step` does itself.
_PERFORM: dict[type, Callable[..., None]] = {
    Broadcast: World._broadcast,
    Publish: World._publish,
    Relay: World._relay,
    RawBytes: World._send_raw_bytes,
    SetTimer: World._set_timer,
    Decided: World._decided,
    Accused: World._accused,
    Waiting: World._waiting,
}


def _keep_log(node: SimulatedParty, crash: Crash) -> list[Message]:
    return node.log


def _frame(origin: int, data: bytes) -> bytes:
    """Prefix bytes with the sender's number, which a real link would know from its channel."""
    return origin.to_bytes(4, "little", signed=True) + data


__all__ = ["SimulatedMachine", "SimulatedParty", "World"]
