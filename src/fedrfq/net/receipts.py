"""Receipts that clients are owed: each is given after a while, unless its round is decided before.

A receipt tells a client that it need not repeat itself, and, if it was left out, whom to hold to account. An honest server
lists what it has stored, so its own receipts convict nobody; and once the round is decided, clients are sent the certificate,
and learn nothing from a receipt. Most rounds are decided before receipts are due, and then none is even signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedrfq.consensus.machine import Send


class Receipts:
    """`send` gives one; the first waits for `delay_s`, and those after it for no longer. Made in a running loop."""

    def __init__(self, send: Callable[[int, bytes], None], delay_s: float) -> None:
        self._send, self._delay, self._loop = send, delay_s, asyncio.get_running_loop()
        self._owed: list[Send] = []
        self._due: asyncio.TimerHandle | None = None

    def owe(self, receipt: Send) -> None:
        """To be given, for an upload that is on the disk."""
        self._owed.append(receipt)
        if self._due is None:
            self._due = self._loop.call_later(self._delay, self._give)

    def decided(self, round_: int) -> None:
        """Up to this round nobody needs one any more."""
        owed = self._owed
        self.drop()
        for receipt in owed:
            if receipt.message.body.round > round_:
                self.owe(receipt)

    def drop(self) -> None:
        """Owe nothing."""
        self._owed = []
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _give(self) -> None:
        owed, self._owed, self._due = self._owed, [], None
        for receipt in owed:
            self._send(receipt.to, receipt.message.wire)
