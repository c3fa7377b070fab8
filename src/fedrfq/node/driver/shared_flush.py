"""Carries out effects after what they rely on is on the disk, by one flush for as many as may wait.

Everything a batch of effects wants persisted is on the disk, by one flush, before anything of the
batch is sent or reported.

A batch may wait a moment to share its flush with the next one, if all it persists are uploads and
commit certificates and all it sends are receipts and those certificates. Receipts are delayed
anyway. Certificates are sent at once, before the flush: they prove themselves, and our own votes in
them were persisted earlier. A party that forgets one has still voted, and reaches the same decision
again or is shown it; whatever it signs in the next round stands after the certificate in the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fedrfq.consensus.events import Decided, Effect, Persist, Publish, Send, SetTimer
from fedrfq.consensus.messages import Cert, Kind, Message, Receipt, Upload

# How long a batch may wait: with a decision in it, which the owner is waiting for, and with uploads
# alone, which nobody waits for because receipts come later.
DECISION_WAIT_S = 0.01
UPLOAD_WAIT_S = 0.1


class Disk(Protocol):
    """What is needed of a WriteAheadLog."""

    def append(self, message: Message) -> None:
        """Add a message to what is flushed next."""

    def flush(self) -> None:
        """Wait until all added messages are on the disk."""


class SharedFlush:
    """Effects that wait for the disk. It is created in a running event loop.

    `do` has a function for every kind of effect but Persist. `on_due` is called when what waits has
    waited long enough: `carry_out` then releases it, with whatever else has come. `on_persisted`
    belongs to the owner and is called after the flush. `count` is the number of flushes so far, and
    `seconds` is what they took.
    """

    def __init__(
        self,
        disk: Disk,
        do: Mapping[type[Effect], Callable[[Any], None]],
        on_due: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._do = do
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Effect] = []
        self._is_due = False
        # It ends the wait.
        self.timer: asyncio.TimerHandle | None = None
        self.count = 0
        self.seconds = 0.0
        self.on_persisted: Callable[[Message], None] = lambda message: None

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out a batch's effects, or let them wait for a shared flush if all of them may.

        Their order is kept, except that some may overtake those that wait (`_AT_ONCE`).
        """
        if self._is_due or not all(map(_may_wait, effects)):
            self._waiting += effects
            self.release()
            return
        before = len(self._waiting)
        for effect in effects:
            if type(effect) in _AT_ONCE:
                self._do[type(effect)](effect)
            else:
                self._waiting.append(effect)
        if len(self._waiting) > before:
            has_decision = any(type(effect) is Decided for effect in effects)
            self._flush_within(DECISION_WAIT_S if has_decision else UPLOAD_WAIT_S)

    def release(self) -> None:
        """Persist what is to be persisted, then do everything else that was waiting."""
        effects = self._waiting
        self.drop()
        # The invariant of this module: the flush comes before anything is sent.
        messages = [effect.message for effect in effects if type(effect) is Persist]
        if messages:
            self._persist(messages)
        for effect in effects:
            if type(effect) is not Persist:
                self._do[type(effect)](effect)

    def drop(self) -> None:
        """Forget what is waiting."""
        self._waiting = []
        self._is_due = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _persist(self, messages: Sequence[Message]) -> None:
        before = time.perf_counter()
        for message in messages:
            self._disk.append(message)
        self._disk.flush()
        self.count += 1
        self.seconds += time.perf_counter() - before
        for message in messages:
            self.on_persisted(message)

    def _flush_within(self, delay_s: float) -> None:
        """Let the waiting effects wait no longer than this; an earlier time stays."""
        when = self._loop.time() + delay_s
        if self.timer is not None:
            if self.timer.when() <= when:
                return
            self.timer.cancel()
        self.timer = self._loop.call_at(when, self._end_wait)

    def _end_wait(self) -> None:
        # Not at once but in a turn, so that events that are here already share the flush.
        self._is_due = True
        self.timer = None
        self._on_due()


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


# Carried out at once even if the rest of the batch waits.
_AT_ONCE = (Publish, SetTimer)
_MAY_WAIT = (*_AT_ONCE, Decided)
