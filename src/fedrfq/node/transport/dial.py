"""Keeps a connection to a server: dials it again and again, less often the longer it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from fedrfq.node.transport import failures
from fedrfq.node.transport.budget import Limits
from fedrfq.node.transport.link import Link


class Backoff:
    """The delays between attempts to connect: each twice the one before, up to the longest.

    They start again from the first once a connection has lasted longer than the current delay. A
    part of each is random, so that the parties that lost a server do not all return at once.
    """

    def __init__(self, first_s: float, longest_s: float, rng: Random) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._rng = rng
        self._delay_s = first_s

    def after(self, lasted_s: float) -> float:
        """Return the delay in seconds after a connection that lasted so long."""
        delay_s = self._delay_s
        # A peer that accepts and hangs up at once must not be dialled in a tight loop.
        if lasted_s > delay_s:
            delay_s = self._first_s
        self._delay_s = min(2 * delay_s, self._longest_s)
        return delay_s * self._rng.uniform(0.5, 1.0)


async def keep_connected(
    dial: Callable[[], Link],
    address: tuple[str, int],
    limits: Limits,
    rng: Random,
    on_failed: Callable[[str], None] = lambda why: None,
) -> None:
    """Dial this address whenever there is no connection, until cancelled.

    `on_failed` is told, in words, why an attempt has failed.
    """
    backoff = Backoff(*limits.backoff_s, rng)
    while True:
        link = dial()
        await _connect(link, address, limits.handshake_s)
        lasted_s = 0.0
        if link.up_at is not None:
            lasted_s = asyncio.get_running_loop().time() - link.up_at
        else:
            on_failed(link.why)
        await asyncio.sleep(backoff.after(lasted_s))


async def _connect(link: Link, address: tuple[str, int], timeout_s: float) -> None:
    """Connect, and wait until the connection has ended or could not be made."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: link, *address)
    # UnicodeError: the address is not a valid host name. A timeout is an OSError, too.
    except (OSError, UnicodeError) as error:
        link.drop("unreachable", failures.in_words(error))
    else:
        # Not `await link.gone`: cancelling this task must not cancel the link's future.
        await asyncio.wait({link.gone})
