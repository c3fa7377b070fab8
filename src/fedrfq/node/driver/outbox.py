"""Who gets what a machine says, and when: one peer, all other servers, or the clients served.

A server's list is sent to the leader at once, because only the leader needs it to go on. To the
others it goes with the next message to all, mostly this server's vote a moment later, in one write
and one read instead of two. They only start the view's timer by it, so it waits for a small part of
a view's time at most. That is a delay as networks have them, and nothing rests on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from fedrfq.consensus.events import Broadcast, Publish, Send
from fedrfq.consensus.messages import Receipt, UploadList
from fedrfq.consensus.roster import Roster, served
from fedrfq.node.driver.receipts import Receipts

# When a client gets its receipt, as a part of the time after which it repeats its upload.
_RECEIPT_DELAY = 0.75
# How long a list may wait, as a part of a view's first timeout: 50 ms of two seconds.
_LIST_DELAY = 1 / 40


class Wires(Protocol):
    """What is needed of Links."""

    def send(self, to: int, data: bytes) -> None:
        """Send a frame to a peer, if it is connected."""

    def connected(self) -> Collection[int]:
        """Return the peers that are connected."""

    def drop(self, peer: int, why: str) -> None:
        """Disconnect a peer."""


class Outbox:
    """Sends a party's messages. It is created in a running event loop.

    `leader` tells which server leads the view. `couriers` are sent every decision and all clients'
    receipts, and know whose uploads they carried.
    """

    def __init__(
        self,
        party: int,
        roster: Roster,
        links: Wires,
        leader: Callable[[], int],
        couriers: Sequence[int],
    ) -> None:
        self._party = party
        self._links = links
        self._leader = leader
        self._couriers = couriers
        self._servers = [server for server in range(roster.n) if server != party]
        self._clients: list[int] = []
        if party >= 0:
            self._clients = [~client for client in served(party, roster.n, len(roster.clients))]
        self.receipts = Receipts(self._send_receipt, _RECEIPT_DELAY * roster.resend_ms / 1000)
        self._loop = asyncio.get_running_loop()
        # Our list, for those who get it later, and the timer that ends their wait.
        self._held: list[tuple[int, bytes]] = []
        self._hold_s = _LIST_DELAY * roster.timeout_ms(0) / 1000
        self._hold_timer: asyncio.TimerHandle | None = None

    def send(self, effect: Send) -> None:
        """Send a message to a peer; a receipt is sent later."""
        if type(effect.message.body) is Receipt:
            self.receipts.owe(effect)
        else:
            self._links.send(effect.to, effect.message.wire)

    def broadcast(self, effect: Broadcast) -> None:
        """Send a message to all other servers, after our list if it has waited for one."""
        self._send_held()
        message = effect.message
        if type(message.body) is UploadList and self._leader_listens():
            self._send_list(message.wire)
            return
        data = message.wire
        send = self._links.send
        for server in self._servers:
            send(server, data)

    def _leader_listens(self) -> bool:
        """Return whether the leader is there; otherwise its view is to end soon, by all lists."""
        leader = self._leader()
        return leader == self._party or leader in self._links.connected()

    def _send_list(self, data: bytes) -> None:
        """Send our list to the leader at once, and to the others later."""
        leader = self._leader()
        for server in self._servers:
            if server == leader:
                self._links.send(server, data)
            else:
                self._held.append((server, data))
        self._hold_timer = self._loop.call_later(self._hold_s, self._send_held)

    def _send_held(self) -> None:
        held = self._held
        self._drop_held()
        for server, data in held:
            self._links.send(server, data)

    def _drop_held(self) -> None:
        self._held = []
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None

    def publish(self, effect: Publish) -> None:
        """Send a message to the clients that this server serves, and to all couriers."""
        data = effect.message.wire
        connected = self._links.connected()
        for peer in (*self._clients, *self._couriers):
            if peer in connected:
                self._links.send(peer, data)

    def drop(self) -> None:
        """Forget what is to be sent later."""
        self.receipts.drop()
        self._drop_held()

    def _send_receipt(self, client: int, receipt: bytes) -> None:
        for peer in (client, *self._couriers):
            self._links.send(peer, receipt)
