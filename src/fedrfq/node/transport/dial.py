"""Staying connected to a server: dialling it again and again, ever less eagerly as long as it comes to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from fedrfq.node.transport.budget import Limits
from fedrfq.node.transport.link import Link


class Waits:
    """Between one attempt and the next: twice as long as before, unless the connection outlasted the wait for it; and a part
    of it is chance, so that not all who lost a server come back at once."""

    def __init__(self, first_s: float, longest_s: float, rng: Random) -> None:
        self._first = first_s
        self._longest = longest_s
        self._rng = rng
        self._wait = first_s

    def after(self, lasted_s: float) -> float:
        """Seconds, after a connection that lasted so long."""
        if lasted_s > self._wait:
            wait = self._first
        else:
            wait = self._wait
        self._wait = min(2 * wait, self._longest)
        return wait * self._rng.uniform(0.5, 1.0)


async def keep(
    dial: Callable[[], Link], address: tuple[str, int], limits: Limits, rng: Random
) -> None:
    """For ever."""
    waits = Waits(*limits.backoff_s, rng)
    while True:
        link = dial()
        await _connect(link, address, limits.handshake_s)
        if link.up_at is None:
            lasted = 0.0
        else:
            lasted = asyncio.get_running_loop().time() - link.up_at
        await asyncio.sleep(waits.after(lasted))


async def _connect(link: Link, address: tuple[str, int], timeout_s: float) -> None:
    """Until the connection has ended, or has not come about."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: link, *address)
    except (OSError, UnicodeError):  # not there, too slow, or a name that is none
        link.drop("unreachable")
    else:
        await asyncio.wait({link.gone})
