"""Runs one state machine, a server's or a client's, on connections, a disk and a clock.

Events are taken in small batches. What a batch leads to is carried out after one flush
(`SharedFlush`). If something cannot be persisted, nothing more is sent: a party that forgets its
votes might contradict them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedrfq.consensus.events import (
    Accused,
    Broadcast,
    Decided,
    Effect,
    Event,
    Expired,
    Publish,
    Received,
    Send,
    SetTimer,
    Start,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import Fetch, Message
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.wire import Refused, Sizes
from fedrfq.errors import UserError
from fedrfq.node.driver.admission import Admission
from fedrfq.node.driver.outbox import Outbox, Wires
from fedrfq.node.driver.shared_flush import Disk, SharedFlush
from fedrfq.node.driver.timers import Timers
from fedrfq.node.transport.fair_queue import FairQueue

# Events after which timers and sockets get their turn.
BATCH = 64
# For a leader that is not connected: long enough for its proposal to arrive by others, or for it to
# come back.
GRACE_MS = 10


class Machine(Protocol):
    """A Replica or a Client."""

    def step(self, event: Event) -> list[Effect]:
        """Process an event and return what is to be done."""


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
        self.links = links
        self.failed: str | None = None
        self.counts: Counter[str] = Counter()
        self.on_decided: Callable[[Decided], None] = _ignore
        self.on_accused: Callable[[Message], None] = _ignore
        self.on_waiting: Callable[[Waiting], None] = _ignore
        self.on_failed: Callable[[str], None] = _ignore
        # The server that leads the current view.
        self.leader: Callable[[], int] = lambda: party
        # Answers a question once nothing can be persisted any more.
        self.answer: Callable[[Fetch], Message | None] = _ignore
        self.admission = Admission(roster, self.counts, couriers, sizes)
        self.timers = Timers(self._schedule)
        self.outbox = Outbox(party, roster, links, lambda: self.leader(), couriers)
        self.flush = SharedFlush(store, self._ways(), self._schedule)
        self._events = FairQueue(couriers)
        self._resend_s = roster.resend_ms / 1000
        self._scheduled = False
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def _ways(self) -> dict[type[Effect], Callable[[Any], None]]:
        """Return how each kind of effect is carried out, once what it relies on is persisted."""
        return {
            Send: self.outbox.send,
            Broadcast: self.outbox.broadcast,
            Publish: self.outbox.publish,
            SetTimer: self._set_timer,
            Decided: self._decided,
            Accused: lambda effect: self.on_accused(effect.evidence),
            Waiting: lambda effect: self.on_waiting(effect),
        }

    def start(self) -> None:
        """Start the machine; call this once the links are up."""
        self.give(Start())

    def stop(self) -> None:
        """Take no more events; carry out the effects that still wait for a flush."""
        self._stopped = True
        if not self.ended.done():
            self._guarded(self.flush.release)
        self.outbox.drop()
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
        try:
            return self.admission.event(peer, data)
        except Refused:
            # With all else that it has sent.
            self._events.forget(peer)
            self.links.drop(peer, "no message")
            return None

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Process one batch, then let the event loop do other things."""
        self._scheduled = False
        if self._stopped:
            return
        self._guarded(lambda: self.flush.carry_out(self._step()))
        if self._events.turns or self.timers.expired:
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
        if self.timers.expired:
            effects += step(Expired(self.timers.expired.pop()))
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

    def _decided(self, effect: Decided) -> None:
        self.outbox.receipts.decided(effect.certificate.record.round)
        self.on_decided(effect)

    def _set_timer(self, effect: SetTimer) -> None:
        self.timers.set(effect)
        if effect.timer is Timer.VIEW and self.leader() not in self.links.connected():
            self.peer_left(self.leader())

    def peer_left(self, peer: int) -> None:
        """Shorten the view if it waits for this peer, which is not connected."""
        if peer == self.leader() != self.party:
            self.timers.hasten(Timer.VIEW, GRACE_MS / 1000)

    def peer_joined(self) -> None:
        """Repeat soon what a peer that has just connected may have missed.

        That is after the first resend time, not after one that has grown by backoff.
        """
        self.timers.hasten(Timer.RESEND, self._resend_s)

    # When nothing can be persisted any more

    def fail(self, why: str) -> None:
        """Send nothing more, and give the machine no more events."""
        self.failed = why
        self.flush.drop()
        self.outbox.drop()
        self.on_failed(why)

    def _answer_only(self, event: Event) -> list[Effect]:
        """Answer a question in place of the machine, which may believe what the disk never got."""
        if type(event) is not Received or not isinstance(event.message.body, Fetch):
            return []
        answer = self.answer(event.message.body)
        if answer is None:
            return []
        return [Send(event.peer, answer)]


def _ignore(_: object) -> None:
    """Do nothing: the owner has not set a callback."""
