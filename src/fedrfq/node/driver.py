"""Runs one state machine, a server's or a client's, on connections, a disk and a clock.

Events are taken in small batches. Everything a batch wants persisted is on the disk, by one flush,
before anything of the batch is sent or reported. If it cannot be persisted, nothing more is sent: a
party that forgets its votes might contradict them.

A batch may wait a moment to share its flush with the next one, if all it persists are uploads and
commit certificates and all it sends are receipts and those certificates. Receipts are delayed
anyway. Certificates are sent at once, before the flush: they prove themselves, and our own votes in
them were persisted earlier. A party that forgets one has still voted, and reaches the same decision
again or is shown it; whatever it signs in the next round stands after the certificate in the log.
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
from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    ChangeProposal,
    Evidence,
    Fetch,
    Kind,
    Message,
    Receipt,
    Upload,
    decode,
    run_of,
)
from fedrfq.consensus.roster import Roster, served
from fedrfq.consensus.sizes import sizes_of
from fedrfq.consensus.wire import Refused, Sizes
from fedrfq.errors import UserError
from fedrfq.node.receipts import Receipts
from fedrfq.node.transport.budget import Allowance
from fedrfq.node.transport.fair_queue import FairQueue

MAX_ROUNDS = 2**32 - 1
# Events after which timers and sockets get their turn.
BATCH = 64
# How long a batch may wait: with a decision in it, which the owner is waiting for, and with uploads
# alone, which nobody waits for because receipts come later.
DECISION_WAIT_S = 0.01
UPLOAD_WAIT_S = 0.1
# Change proposals accepted from one server: at once, and per second.
CHANGE_PROPOSALS = 16
CHANGE_PROPOSALS_S = 4
# When a client gets its receipt, as a part of the time after which it repeats its upload.
_RECEIPT_DELAY = 0.75
# For a leader that is not connected: long enough for its proposal to arrive by others, or for it to
# come back.
GRACE_MS = 10


class Machine(Protocol):
    """A Replica or a Client."""

    def step(self, event: Event) -> list[Effect]:
        """Process an event and return what is to be done."""


class Disk(Protocol):
    """What the driver needs of a WriteAheadLog."""

    def append(self, message: Message) -> None:
        """Add a message to what is flushed next."""

    def flush(self) -> None:
        """Wait until all added messages are on the disk."""


class Wires(Protocol):
    """What the driver needs of Links."""

    def send(self, to: int, data: bytes) -> None:
        """Send a frame to a peer, if it is connected."""

    def connected(self) -> Collection[int]:
        """Return the peers that are connected."""

    def drop(self, peer: int, why: str) -> None:
        """Disconnect a peer."""


class Driver:
    """Connects a machine to the world. It is created in a running event loop.

    `hear` takes a peer's frame from Links, `give` an event that happens here. The `on_…` callbacks
    belong to the owner and are called after the flush, in the order of the effects. `failed` tells
    why nothing can be persisted any more; `ended` is done after `stop`, or has the exception that
    the machine died of.

    A view whose leader is not connected is given up after a grace period instead of its full time.
    Agreement does not depend on when a timer expires: to the machine that is an event like any
    other. Nor does progress suffer: without a connection the leader's proposal cannot arrive, and
    if this server alone has none, the view change of one server moves nobody else.

    `couriers` are peers that carry clients' uploads and ask questions; anything else from them is
    ignored. They are sent every decision and all clients' receipts, and know whose uploads they
    carried. `sizes` are those of honest messages; what is larger is refused before it is decoded.
    """

    def __init__(
        self,
        machine: Machine,
        party: int,
        roster: Roster,
        store: Disk,
        links: Wires,
        *,
        couriers: Sequence[int] = (),
        sizes: Sizes | None = None,
    ) -> None:
        self.machine = machine
        self.party = party
        self.store = store
        self.links = links
        self.failed: str | None = None
        self.counts: Counter[str] = Counter()
        self.flushes = 0
        self.flush_seconds = 0.0
        # Uploads of later rounds are refused.
        self.last_round = MAX_ROUNDS
        # The highest round that each server has mentioned.
        self.heard: dict[int, int] = {}
        self.on_persisted: Callable[[Message], None] = _ignore
        self.on_decided: Callable[[Decided], None] = _ignore
        self.on_accused: Callable[[Message], None] = _ignore
        self.on_waiting: Callable[[Waiting], None] = _ignore
        self.on_failed: Callable[[str], None] = _ignore
        # The server that leads the current view.
        self.leader: Callable[[], int] = lambda: party
        # Takes a frame of another run than the machine's, and tells whether it is one.
        self.take_elsewhere: Callable[[int, bytes], bool] = lambda peer, data: False
        # Answers a question once nothing can be persisted any more.
        self.answer: Callable[[Fetch], Message | None] = _ignore
        self._servers = [server for server in range(roster.n) if server != party]
        self._clients: list[int] = []
        if party >= 0:
            self._clients = [~client for client in served(party, roster.n, len(roster.clients))]
        self._couriers = couriers
        self._run = roster.run
        self._sizes = sizes or sizes_of(roster)
        self._events = FairQueue(couriers)
        self._expired = set[Timer]()
        self._timers = dict[Timer, asyncio.TimerHandle]()
        # Effects that wait for a shared flush, and the timer that ends their wait.
        self._waiting_effects = list[Effect]()
        self._flush_due = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._resend_s = roster.resend_ms / 1000
        self._receipts = Receipts(self._send_receipt, _RECEIPT_DELAY * self._resend_s)
        self._scheduled = False
        self._stopped = False
        self._change_proposals = dict[int, Allowance]()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Start the machine; call this once the links are up."""
        self.give(Start())

    def stop(self) -> None:
        """Take no more events; carry out the effects that still wait for a flush."""
        self._stopped = True
        if not self.ended.done():
            self._guarded(self._release)
        self._receipts.drop()
        # Carrying them out may have failed, and then `ended` has the reason already.
        if not self.ended.done():
            self.ended.set_result(None)

    # Events

    def give(self, event: Event) -> None:
        """Queue an event that happens at this party itself."""
        self._events.put(self.party, event)
        self._schedule()

    def hear(self, peer: int, data: bytes) -> None:
        """Queue a peer's frame, which is decoded when it is the peer's turn."""
        if self._stopped:
            return
        if self._events.put(peer, data, len(data)):
            self._schedule()
        else:
            self.counts["messages without room"] += 1

    def _decoded(self, peer: int, data: bytes) -> Received | None:
        """Return a peer's frame as an event for the machine, if it is one.

        What no honest party would send as a message costs the peer its connection.
        """
        # Another run may have more parties, and so larger messages.
        if run_of(data) not in (None, self._run):
            if not self.take_elsewhere(peer, data):
                self.counts["messages of another run"] += 1
            return None
        try:
            message = decode(data, self._sizes)
        except Refused:
            self._events.forget(peer)
            self.links.drop(peer, "no message")
            return None
        body = message.body
        if peer in self._couriers and type(body) not in _FROM_COURIERS:
            self.counts["not for a courier to say"] += 1
            return None
        if type(body) in _TO_ADMIT and not self._admits(peer, body):
            return None
        # In a question for evidence the number is not a round, but too small to matter.
        if peer >= 0 and body.round > self.heard.get(peer, 0):
            self.heard[peer] = body.round
        return Received(peer, message)

    def _admits(self, peer: int, body: AnyMessage) -> bool:
        """Refuse uploads after the last round, and change proposals that come too often."""
        if type(body) in _INPUTS and body.round > self.last_round:
            self.counts["uploads after the last round"] += 1
            return False
        if not _has_change_proposal(body):
            return True
        # Clients have nothing to propose, nor to hand on.
        if peer < 0:
            return False
        # Each proposal is the text of a whole federation, which is expensive to parse.
        now = self._loop.time()
        allowance = self._change_proposals.setdefault(
            peer, Allowance(CHANGE_PROPOSALS, CHANGE_PROPOSALS_S, now)
        )
        if not allowance.take(now):
            self.counts["change proposals too often"] += 1
            return False
        return True

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Process one batch, then let the event loop do other things."""
        self._scheduled = False
        if self._stopped:
            return
        self._guarded(lambda: self._carry_out(self._step()))
        if self._events.turns or self._expired:
            self._schedule()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except UserError as error:
            self.fail(str(error))
        except Exception as error:
            # A defect: the machine's state can no longer be relied on.
            self.ended.set_exception(error)
            self.stop()

    def _step(self) -> list[Effect]:
        """Give the machine a batch of events, and return what follows from them."""
        effects: list[Effect] = []
        step = self.machine.step
        if self.failed is not None:
            step = self._answer_only
        # At most one timer, and before anything else: an event before it, or the expiry of another
        # timer, might have set it anew or stopped it.
        if self._expired:
            effects += step(Expired(self._expired.pop()))
        count = 0
        events = self._events
        while events.turns and count < BATCH:
            count += 1
            peer, item = events.take()
            event = self._decoded(peer, item) if isinstance(item, bytes) else item
            if event is not None:
                effects += step(event)
        self.counts["events"] += count
        return effects

    # Effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out a batch's effects, or let them wait for a shared flush if all of them may.

        Their order is kept, except that some may overtake those that wait (`_AT_ONCE`).
        """
        if self._flush_due or not all(map(_may_wait, effects)):
            self._waiting_effects += effects
            self._release()
            return
        before = len(self._waiting_effects)
        for effect in effects:
            if type(effect) in _AT_ONCE:
                _DO[type(effect)](self, effect)
            else:
                self._waiting_effects.append(effect)
        if len(self._waiting_effects) > before:
            has_decision = any(type(effect) is Decided for effect in effects)
            self._flush_within(DECISION_WAIT_S if has_decision else UPLOAD_WAIT_S)

    def _flush_within(self, delay_s: float) -> None:
        """Let the waiting effects wait no longer than this; an earlier time stays."""
        when = self._loop.time() + delay_s
        if self._flush_timer is not None:
            if self._flush_timer.when() <= when:
                return
            self._flush_timer.cancel()
        self._flush_timer = self._loop.call_at(when, self._end_wait)

    def _end_wait(self) -> None:
        # Not at once but in a turn, so that events that are here already share the flush.
        self._flush_due = True
        self._flush_timer = None
        self._schedule()

    def _release(self) -> None:
        """Persist what is to be persisted, then do everything else that was waiting."""
        effects = self._waiting_effects
        self._waiting_effects = []
        self._flush_due = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        # The invariant of this module: the flush comes before anything is sent.
        messages = [effect.message for effect in effects if type(effect) is Persist]
        if messages:
            self._persist(messages)
        for effect in effects:
            if type(effect) is not Persist:
                _DO[type(effect)](self, effect)

    def _persist(self, messages: Sequence[Message]) -> None:
        before = time.perf_counter()
        for message in messages:
            self.store.append(message)
        self.store.flush()
        self.flushes += 1
        self.flush_seconds += time.perf_counter() - before
        for message in messages:
            self.on_persisted(message)

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
        connected = self.links.connected()
        for peer in (*self._clients, *self._couriers):
            if peer in connected:
                self.links.send(peer, data)

    def _send_receipt(self, client: int, receipt: bytes) -> None:
        for peer in (client, *self._couriers):
            self.links.send(peer, receipt)

    def _decided(self, effect: Decided) -> None:
        self._receipts.decided(effect.certificate.record.round)
        self.on_decided(effect)

    def _accused(self, effect: Accused) -> None:
        self.on_accused(effect.evidence)

    def _waiting(self, effect: Waiting) -> None:
        self.on_waiting(effect)

    # Timers

    def _set_timer(self, effect: SetTimer) -> None:
        timer, delay_ms = effect
        # An expiry that the machine has not been told of yet is void.
        self._expired.discard(timer)
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()
        if delay_ms is not None:
            self._timers[timer] = self._loop.call_later(delay_ms / 1000, self._expire, timer)
            if timer is Timer.VIEW and self.leader() not in self.links.connected():
                self.peer_left(self.leader())

    def peer_left(self, peer: int) -> None:
        """Shorten the view if it waits for this peer, which is not connected."""
        if peer == self.leader() != self.party:
            self._hasten(Timer.VIEW, GRACE_MS / 1000)

    def peer_joined(self) -> None:
        """Repeat soon what a peer that has just connected may have missed.

        That is after the first resend time, not after one that has grown by backoff.
        """
        self._hasten(Timer.RESEND, self._resend_s)

    def _hasten(self, timer: Timer, delay_s: float) -> None:
        """Let a running timer expire within this delay."""
        running = self._timers.get(timer)
        soon = self._loop.time() + delay_s
        if running is not None and soon < running.when():
            running.cancel()
            self._timers[timer] = self._loop.call_at(soon, self._expire, timer)

    def _expire(self, timer: Timer) -> None:
        del self._timers[timer]
        self._expired.add(timer)
        self._schedule()

    # When nothing can be persisted any more

    def fail(self, why: str) -> None:
        """Send nothing more, and give the machine no more events."""
        self.failed = why
        self._waiting_effects = []
        self._receipts.drop()
        self.on_failed(why)

    def _answer_only(self, event: Event) -> list[Effect]:
        """Answer a question in place of the machine, which may believe what the disk never got."""
        if type(event) is not Received or not isinstance(event.message.body, Fetch):
            return []
        answer = self.answer(event.message.body)
        if answer is None:
            return []
        return [Send(event.peer, answer)]


def _has_change_proposal(body: AnyMessage) -> bool:
    """Tell whether checking a message means parsing the text of a federation."""
    if isinstance(body, Evidence):
        body = body.first.body
    return isinstance(body, ChangeProposal)


def _may_wait(effect: Effect) -> bool:
    """Tell whether a batch with this effect may wait for a shared flush (see the module)."""
    if type(effect) is Persist:
        body = effect.message.body
        if type(body) is Cert:
            return body.certificate.phase == Kind.COMMIT
        return type(body) is Upload
    if type(effect) is Send:
        return type(effect.message.body) is Receipt
    return type(effect) in _MAY_WAIT


def _ignore(_: object) -> None:
    """Do nothing: the owner has not set a callback."""


_INPUTS = frozenset((Upload, ChangeProposal))
# What may be refused although it is well-formed (see `_admits`).
_TO_ADMIT = _INPUTS | {Evidence}
_FROM_COURIERS = frozenset((Upload, Fetch))
# Carried out at once even if the rest of the batch waits.
_AT_ONCE = (Publish, SetTimer)
_MAY_WAIT = (*_AT_ONCE, Decided)
_DO: dict[type, Callable[..., None]] = {
    Send: Driver._send,
    Broadcast: Driver._broadcast,
    Publish: Driver._publish,
    SetTimer: Driver._set_timer,
    Decided: Driver._decided,
    Accused: Driver._accused,
    Waiting: Driver._waiting,
}
