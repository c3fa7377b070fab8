"""The timers of a machine. Each is an event once it has run out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedrfq.consensus.events import SetTimer, Timer


class Timers:
    """At most one timer of each name. It is created in a running event loop.

    `on_expired` is called when a timer has run out; from then on there are `expired` ones to take.
    """

    def __init__(self, on_expired: Callable[[], None]) -> None:
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self.running: dict[Timer, asyncio.TimerHandle] = {}
        # Those that the machine has not been told of yet.
        self.expired: set[Timer] = set()

    def set(self, effect: SetTimer) -> None:
        """Start a timer anew, or stop it."""
        timer, delay_ms = effect
        # An expiry that the machine has not been told of yet is void.
        self.expired.discard(timer)
        running = self.running.pop(timer, None)
        if running is not None:
            running.cancel()
        if delay_ms is not None:
            self.running[timer] = self._loop.call_later(delay_ms / 1000, self.expire, timer)

    def hasten(self, timer: Timer, delay_s: float) -> None:
        """Let a running timer expire within this delay."""
        running = self.running.get(timer)
        soon = self._loop.time() + delay_s
        if running is not None and soon < running.when():
            running.cancel()
            self.running[timer] = self._loop.call_at(soon, self.expire, timer)

    def expire(self, timer: Timer) -> None:
        """Let a running timer have run out."""
        del self.running[timer]
        self.expired.add(timer)
        self._on_expired()
