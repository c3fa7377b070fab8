"""Runs one machine, a server's or a client's, on connections, a disk and a clock.

Events are taken in small batches. All that a batch wants kept is on the disk, by one flush, before anything of the batch is
said or reported. If it cannot be kept, nothing more is said: whoever forgets its votes might contradict them.

A batch waits a moment for the next, to share its flush, if all it wants kept are uploads and commit certificates, and all it
says are receipts, which wait for longer anyway, and those certificates, which go at once: they prove themselves, and our own
votes in them were kept before. Who forgets one has still voted, and comes to the same or is shown it; whatever we sign of the
next round stands after it in the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from fedrfq.consensus.events import (
    Accused,
    Broadcast,
    Decided,
    Effect,
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
from fedrfq.consensus.messages import Cert, Fetch, Kind, Message, Receipt, Upload, decode
from fedrfq.consensus.roster import Roster, served
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.node.receipts import Receipts
from fedrfq.node.transport.budget import Allowance
from fedrfq.node.transport.fair_queue import FairQueue

MOST_ROUNDS = 2**32 - 1
BATCH = 64  # events, after which timers and sockets get their turn
PATIENCE_S = 0.01  # that a batch may wait with a decision in it, for which the owner waits
UPLOADS_S = 0.1  # and one with uploads alone, for which nobody does: receipts come later
# of a server, at once and a second
CHANGE_PROPOSALS = 16
CHANGE_PROPOSALS_S = 4
_RECEIPTS = 0.75  # of the time after which clients repeat themselves, until they get one
GRACE_MS = 10  # for a leader that is not connected: as long as a proposal may be on its way by others, or it comes back


class Machine(Protocol):
    """A Replica or a Client."""

    def step(self, event: Event) -> list[Effect]: ...


class Disk(Protocol):
    """What is needed of a Store."""

    def append(self, message: Message) -> None: ...

    def flush(self) -> None: ...


class Wires(Protocol):
    """What is needed of Links."""

    def send(self, to: int, data: bytes) -> None: ...

    def connected(self) -> Collection[int]: ...

    def drop(self, peer: int, why: str) -> None: ...


class Driver:
    """`hear` is what Links call with a peer's frame; `give` is for what happens here. The `on_…` are the owner's to hear:
    they are called after the flush, in the order of effects. `failed` says why nothing can be kept any more; `ended` is done
    after `stop`, or has the exception by which the machine died. Made in a running loop.

    A view whose leader is not connected is given up after a grace instead of its whole time. Agreement does not depend on
    when a timer goes off, to the machine that is an event like any other. Progress does not suffer: without a connection the
    leader's proposal cannot come, and where it is only we who have none, one server's view change moves nobody else.

    `couriers` are peers that carry clients' uploads and ask questions; what else they say is not heard. They are told of
    every decision, and shown all clients' receipts: whose upload they carried, they know."""

    def __init__(
        self,
        machine: Machine,
        party: int,
        roster: Roster,
        store: Disk,
        links: Wires,
        couriers: Sequence[int] = (),
    ) -> None:
        self.machine = machine
        self.party = party
        self.store = store
        self.links = links
        self.failed: str | None = None
        self.counts: Counter[str] = Counter()
        self.flushes = 0
        self.flush_seconds = 0.0
        self.last_round = MOST_ROUNDS  # after it there is nothing to upload
        self.heard: dict[int, int] = {}  # the highest round a server spoke of
        self.on_kept: Callable[[Message], None] = (
            _nothing  # for each message that is now on the disk
        )
        self.on_decided: Callable[[Decided], None] = _nothing
        self.on_accused: Callable[[Message], None] = _nothing
        self.on_waiting: Callable[[Waiting], None] = _nothing
        self.on_failed: Callable[[str], None] = _nothing
        self.leader: Callable[[], int] = lambda: party  # whom this view waits for
        self.answer: Callable[[Fetch], Message | None] = (
            _nothing  # what can be said once nothing can be kept
        )
        self._servers = [server for server in range(roster.n) if server != party]
        if party >= 0:
            self._clients = [~client for client in served(party, roster.n, len(roster.clients))]
        else:
            self._clients = []
        self._couriers = couriers
        self._turns = FairQueue(couriers)
        self._rung = set[Timer]()
        self._timers = dict[Timer, asyncio.TimerHandle]()
        # effects that wait, and whether they have for long enough
        self._held = list[Effect]()
        self._ripe = False
        self._patience: asyncio.TimerHandle | None = None
        self._resend_s = roster.resend_ms / 1000
        self._receipts = Receipts(self._hand, _RECEIPTS * self._resend_s)
        self._due = self._stopped = False
        self._registered = len(roster.clients)
        self._change_proposals = dict[int, Allowance]()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Once the links are up."""
        self.give(Start())

    def stop(self) -> None:
        """Take no more events; what was said is on the disk and with the links, and so is what waited to be."""
        self._stopped = True
        if not self.ended.done():
            self._safely(self._release)
        self._receipts.drop()
        if not self.ended.done():
            self.ended.set_result(None)

    def give(self, event: Event) -> None:
        self._turns.put(self.party, event)
        self._wake()

    def hear(self, peer: int, data: bytes) -> None:
        """A frame of a peer; one that is no message costs it its connection."""
        if self._stopped:
            return
        try:
            message = decode(data)
        except Refused:
            self.links.drop(peer, "no message")
            return
        if peer in self._couriers and not isinstance(message.body, Upload | Fetch):
            self.counts["not for a courier to say"] += 1
            return
        if type(message.body) is Upload and not self._admits(peer, message.body):
            return
        if peer >= 0 and message.body.round > self.heard.get(peer, 0):
            self.heard[peer] = message.body.round
        if self._turns.put(peer, Received(peer, message), len(data)):
            self._wake()
        else:
            self.counts["messages without room"] += 1

    def _admits(self, peer: int, upload: Upload) -> bool:
        """Not after the last round; and of change proposals, each of which is a whole federation to read, only now and then one."""
        if upload.round > self.last_round:
            self.counts["uploads after the last round"] += 1
            return False
        if (
            upload.client < self._registered or peer < 0
        ):  # of a client it is nobody's change proposal
            return upload.client < self._registered
        now = self._loop.time()
        if not self._change_proposals.setdefault(
            peer, Allowance(CHANGE_PROPOSALS, CHANGE_PROPOSALS_S, now)
        ).take(now):
            self.counts["change proposals too often"] += 1
            return False
        return True

    def _wake(self) -> None:
        if not self._due and not self._stopped:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        if self._stopped:
            return
        self._safely(lambda: self._carry_out(self._stepped()))
        if self._turns or self._rung:
            self._wake()

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except UserError as error:
            self.fail(str(error))
        except Exception as error:  # a defect: its state can no longer be relied on
            self.ended.set_exception(error)
            self.stop()

    def _ripen(self) -> None:
        self._ripe = True
        self._patience = None
        self._wake()

    def _stepped(self) -> list[Effect]:
        """What follows from a batch. One timer at most, and first: what comes after it might set it anew."""
        effects: list[Effect] = []
        if self.failed is None:
            step = self.machine.step
        else:
            step = self._answered
        turns = self._turns
        taken = 0
        if self._rung:
            effects += step(Expired(self._rung.pop()))
        while turns and taken < BATCH:
            taken += 1
            effects += step(turns.take())
        self.counts["events"] += taken
        return effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """In their order, with those that have waited first."""
        if self._ripe or not all(map(_patient, effects)):
            self._held += effects
            self._release()
            return
        waiting = len(self._held)
        for effect in effects:
            if type(effect) in _AT_ONCE:
                _DO[type(effect)](self, effect)
            else:
                self._held.append(effect)
        if len(self._held) > waiting:
            self._ripen_in(
                PATIENCE_S if any(type(effect) is Decided for effect in effects) else UPLOADS_S
            )

    def _ripen_in(self, delay_s: float) -> None:
        """If it would not be sooner anyway."""
        when = self._loop.time() + delay_s
        if self._patience is not None:
            if self._patience.when() <= when:
                return
            self._patience.cancel()
        self._patience = self._loop.call_at(when, self._ripen)

    def _release(self) -> None:
        effects = self._held
        self._held = []
        self._ripe = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        kept = [effect.message for effect in effects if type(effect) is Persist]
        if kept:
            self._keep(kept)
        for effect in effects:
            if type(effect) is not Persist:
                _DO[type(effect)](self, effect)

    def _keep(self, messages: Sequence[Message]) -> None:
        before = time.perf_counter()
        for message in messages:
            self.store.append(message)
        self.store.flush()
        self.flushes += 1
        self.flush_seconds += time.perf_counter() - before
        for message in messages:
            self.on_kept(message)

    # What the other effects do

    def _send(self, effect: Send) -> None:
        if type(effect.message.body) is Receipt:
            self._receipts.owe(effect)
        else:
            self.links.send(effect.to, effect.message.wire)

    def _broadcast(self, effect: Broadcast) -> None:
        data = effect.message.wire
        send = self.links.send
        for server in self._servers:
            send(server, data)

    def _publish(self, effect: Publish) -> None:
        data = effect.message.wire
        here = self.links.connected()
        for peer in (*self._clients, *self._couriers):
            if peer in here:
                self.links.send(peer, data)

    def _hand(self, client: int, receipt: bytes) -> None:
        for peer in (client, *self._couriers):
            self.links.send(peer, receipt)

    def _set_timer(self, effect: SetTimer) -> None:
        timer, delay_ms = effect
        self._rung.discard(timer)
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()
        if delay_ms is not None:
            self._timers[timer] = self._loop.call_later(delay_ms / 1000, self._ring, timer)
            if timer is Timer.VIEW and self.leader() not in self.links.connected():
                self.lost(self.leader())

    def lost(self, peer: int) -> None:
        """A peer is not connected: if the view waits for it, not for long."""
        if peer == self.leader() != self.party:
            self._hasten(Timer.VIEW, GRACE_MS / 1000)

    def found(self) -> None:
        """A peer is connected: what it has missed is said again after the first wait, not after one that has grown."""
        self._hasten(Timer.RESEND, self._resend_s)

    def _hasten(self, timer: Timer, delay_s: float) -> None:
        """Let it ring so soon, if it runs and would ring later."""
        running = self._timers.get(timer)
        soon = self._loop.time() + delay_s
        if running is not None and soon < running.when():
            running.cancel()
            self._timers[timer] = self._loop.call_at(soon, self._ring, timer)

    def _ring(self, timer: Timer) -> None:
        del self._timers[timer]
        self._rung.add(timer)
        self._wake()

    def _decided(self, effect: Decided) -> None:
        self._receipts.decided(effect.certificate.record.round)
        self.on_decided(effect)

    def _accused(self, effect: Accused) -> None:
        self.on_accused(effect.evidence)

    def _waiting(self, effect: Waiting) -> None:
        self.on_waiting(effect)

    # When nothing can be kept any more

    def fail(self, why: str) -> None:
        """Say nothing more, and take nothing in."""
        self.failed = why
        self._held = []
        self._receipts.drop()
        self.on_failed(why)

    def _answered(self, event: Event) -> list[Effect]:
        """The machine may believe what the disk never got, so it is not asked."""
        if type(event) is not Received or not isinstance(event.message.body, Fetch):
            return []
        found = self.answer(event.message.body)
        if found is None:
            return []
        return [Send(event.peer, found)]


def _patient(effect: Effect) -> bool:
    """Whether a batch with it may wait."""
    if type(effect) is Persist:
        body = effect.message.body
        return type(body) is Upload or (
            type(body) is Cert and body.certificate.phase == Kind.COMMIT
        )
    if type(effect) is Send:
        return type(effect.message.body) is Receipt
    return type(effect) in _PATIENT


def _nothing(_: object) -> None:
    """Nobody listens."""


_AT_ONCE = (Publish, SetTimer)  # even of a batch that waits
_PATIENT = (*_AT_ONCE, Decided)
_DO: dict[type, Callable[..., None]] = {
    Send: Driver._send,
    Broadcast: Driver._broadcast,
    Publish: Driver._publish,
    SetTimer: Driver._set_timer,
    Decided: Driver._decided,
    Accused: Driver._accused,
    Waiting: Driver._waiting,
}
