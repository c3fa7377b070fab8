"""Receipts owed to clients: each is sent after a delay, unless its round is decided before.

A receipt tells a client that it need not repeat its upload and, if the upload was left out, which
server to hold to account. An honest server lists what it has stored, so its receipts convict
nobody. Once the round is decided, clients are sent the certificate and learn nothing more from a
receipt. Most rounds are decided before receipts are due, and then none is even signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from fedrfq.consensus.events import Send
from fedrfq.consensus.messages import Receipt

# Per client and round: a server stores at most two different uploads, which convict the client.
MAX_PER_ROUND = 2
# Clients served before others get their turn; each receipt costs a signature.
CLIENTS_PER_TURN = 64


class Receipts:
    """The receipts that are due. It is created in a running event loop.

    `send(client, receipt)` sends one. The first waits for `delay_s`, and those that are owed
    meanwhile go with it. However often a client repeats itself, it is owed one receipt per upload
    and `MAX_PER_ROUND` per round.
    """

    def __init__(self, send: Callable[[int, bytes], None], delay_s: float) -> None:
        self._send = send
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        # By client and round, then by the upload's digest.
        self._owed: dict[tuple[int, int], dict[bytes, Send]] = {}
        self._timer: asyncio.Handle | None = None

    def owe(self, receipt: Send) -> None:
        """Owe a receipt for an upload that is on the disk."""
        body = receipt.message.body
        assert isinstance(body, Receipt)
        owed = self._owed.setdefault((receipt.to, body.round), {})
        if len(owed) < MAX_PER_ROUND:
            owed.setdefault(body.digest, receipt)
        self._start_timer()

    def decided(self, round_: int) -> None:
        """Forget the receipts of rounds up to this one, which nobody needs any more."""
        later = {key: owed for key, owed in self._owed.items() if key[1] > round_}
        self.drop()
        if later:
            self._owed = later
            self._start_timer()

    def drop(self) -> None:
        """Forget all receipts."""
        self._owed = {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self._send_some)

    def _send_some(self) -> None:
        for key in list(islice(self._owed, CLIENTS_PER_TURN)):
            for receipt in self._owed.pop(key).values():
                # The message is signed here, when its bytes are first asked for.
                self._send(receipt.to, receipt.message.wire)
        self._timer = None
        if self._owed:
            self._timer = self._loop.call_soon(self._send_some)
