"""Receipts that clients are owed: each is given after a while, unless its round is decided before.

A receipt tells a client that it need not repeat itself, and, if it was left out, whom to hold to account. An honest server
lists what it has stored, so its own receipts convict nobody; and once the round is decided, clients are sent the certificate,
and learn nothing from a receipt. Most rounds are decided before receipts are due, and then none is even signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from fedrfq.consensus.events import Send
from fedrfq.consensus.messages import Receipt

MOST = 2  # of a client and round: so many of its uploads are kept
A_TURN = 64  # clients that get theirs before others have their turn, each receipt costs a signature


class Receipts:
    """`send` gives one; the first waits for `delay_s`, and those after it for no longer. Whatever a client repeats, it is
    owed one receipt for an upload, and `MOST` a round. Made in a running loop."""

    def __init__(self, send: Callable[[int, bytes], None], delay_s: float) -> None:
        self._send = send
        self._delay = delay_s
        self._loop = asyncio.get_running_loop()
        self._owed: dict[
            tuple[int, int], dict[bytes, Send]
        ] = {}  # by client and round, by what was uploaded
        self._due: asyncio.Handle | None = None

    def owe(self, receipt: Send) -> None:
        """To be given, for an upload that is on the disk."""
        body = receipt.message.body
        assert isinstance(body, Receipt)
        owed = self._owed.setdefault((receipt.to, body.round), {})
        if len(owed) < MOST:
            owed.setdefault(body.digest, receipt)
        self._wait()

    def decided(self, round_: int) -> None:
        """Up to this round nobody needs one any more."""
        later = {place: owed for place, owed in self._owed.items() if place[1] > round_}
        self.drop()
        if later:
            self._owed = later
            self._wait()

    def drop(self) -> None:
        """Owe nothing."""
        self._owed = {}
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _wait(self) -> None:
        if self._due is None:
            self._due = self._loop.call_later(self._delay, self._give)

    def _give(self) -> None:
        for place in list(islice(self._owed, A_TURN)):
            for receipt in self._owed.pop(place).values():
                self._send(receipt.to, receipt.message.wire)
        if self._owed:
            self._due = self._loop.call_soon(self._give)
        else:
            self._due = None
