"""A party's connections to all others: one each, made and kept up by the party of the higher number or the client.

A frame is heard as coming from the party whose pinned certificate its connection was opened with. Nothing that a peer or a
stranger does is raised or logged here: it is counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random

from fedrfq.federation.members import endpoint
from fedrfq.files.atomic import open_files
from fedrfq.node.membership.identity import Identity
from fedrfq.node.transport import tls
from fedrfq.node.transport.budget import (
    Budget,
    Limits,
    Pace,
    client_pace,
    courier_pace,
    server_pace,
)
from fedrfq.node.transport.dial import keep
from fedrfq.node.transport.door import Door
from fedrfq.node.transport.link import Link

_BACKLOG = 512  # connections the kernel keeps until they are taken, all at once
_SPARE = (
    _BACKLOG + 128
)  # open files besides connections that are counted: those just taken, logs, listeners


class Links:
    """`hear(peer, data)` is called for every frame. `on_peer(peer, whether)` when a peer has come or gone. `addresses` are
    those of the servers, and may be changed before the start."""

    def __init__(
        self,
        identity: Identity,
        hear: Callable[[int, bytes], None],
        limits: Limits | None = None,
        rng: Random | None = None,
        bind: tuple[str, int] | None = None,
    ) -> None:
        self._identity = identity
        self._me = identity.party
        self._charter = identity.federation
        self._hear = hear
        self._limits = limits or Limits()
        self._rng = rng or Random()
        self._servers = self._limits.server or server_pace(self._charter)
        self._clients = self._limits.client or client_pace(self._charter)
        self._couriers = self._limits.courier or courier_pace(self._charter)
        self.addresses = {
            server: endpoint(self._charter.members[server].address)
            for server in range(self._charter.roster.n)
        }
        self._bind = bind or self.addresses.get(self._me)
        self._budgets: dict[int, Budget] = {}
        self._peers: dict[int, Link] = {}
        self._links: set[Link] = set()
        # Strangers must not use them up: accepting connections would then fail for everybody.
        room = (
            open_files(len(self._charter.members) + self._limits.pending + _SPARE)
            - len(self._charter.members)
            - _SPARE
        )
        self._door: Door[Link] = Door(
            max(1, min(self._limits.pending, room)), self._limits.pending_per_address
        )
        self._filled: list[Link] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._stopped = False
        self.address: tuple[str, int]  # where this server listens, once started
        self.counts: Counter[str] = Counter()
        self.on_peer: Callable[[int, bool], None] = lambda peer, whether: None

    # For the driver

    async def start(self) -> None:
        """Listen, if this is a server, and dial. An address that cannot be listened on is an `OSError`."""
        loop = asyncio.get_running_loop()
        if self._bind is not None:
            context = tls.server_context(self._identity)
            self._server = await loop.create_server(
                lambda: Link(self, context, None), *self._bind, backlog=_BACKLOG
            )
            self.address = self._server.sockets[0].getsockname()[:2]
        self._tasks = [
            loop.create_task(each)
            for each in (self._watch(), *self._calls(tls.client_context(self._identity)))
        ]

    async def stop(self) -> None:
        """Send what is queued, for a bounded time, and close everything."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links):
            link.finish() if link.peer is not None else link.drop("stopped")
        await self._gone(self._limits.drain_s)
        for link in list(self._links):
            link.drop("stopped")
        await self._gone(None)

    def send(self, to: int, data: bytes) -> None:
        """At the end of this turn of the loop, together with all else for this peer; to nobody if it is not connected."""
        link = self._peers.get(to)
        if link is None or link.closed:
            self.counts["unsent"] += 1
        else:
            link.say(data)

    def drop(self, peer: int, why: str) -> None:
        """Disconnect a peer, counted under the reason. It may come back."""
        if peer in self._peers:
            self._peers[peer].drop(why)

    def connected(self) -> set[int]:
        return set(self._peers)

    def unread(self, peer: int) -> int:
        """Bytes that wait for a peer to read them."""
        link = self._peers.get(peer)
        if link is None:
            return 0
        return link.unread

    # For a link

    def came(self, link: Link) -> None:
        self._links.add(link)
        self.counts["connections"] += 1
        if self._stopped:
            link.drop("stopped")
        elif link.dialled is None and (oldest := self._door.enter(link, link.host)) is not None:
            self._door.leave(oldest)
            oldest.drop("too many")

    def shown(self, link: Link, certificate: bytes) -> None:
        party = tls.party(self._charter, certificate)
        if party is None or not (
            self._awaits(party) if link.dialled is None else party == link.dialled
        ):
            link.drop("wrong certificate")
            return
        self._door.leave(link)
        link.admit(party, self._budget(party))
        if link.dialled is None:
            self._welcome(link, party)
            link.ping()  # so that the other end knows that its certificate was taken, too

    def heard(self, link: Link, data: bytes) -> None:
        peer = link.peer
        assert peer is not None
        if link.up_at is None:
            self._welcome(link, peer)
        if data:
            self._hear(peer, data)

    def filled(self, link: Link) -> None:
        if not self._filled:
            asyncio.get_running_loop().call_soon(self._flush)
        self._filled.append(link)

    def went(self, link: Link) -> None:
        self._links.discard(link)
        self._door.leave(link)
        if link.peer is not None and self._peers.get(link.peer) is link:
            del self._peers[link.peer]
            self.on_peer(link.peer, False)

    # Who is who

    def _dials(self, server: int) -> bool:
        return self._me < 0 or server < self._me

    def _awaits(self, party: int) -> bool:
        return party < 0 or party > self._me

    def _budget(self, party: int) -> Budget:
        """Kept when the party goes, so that coming back does not renew it."""
        if party not in self._budgets:
            self._budgets[party] = Budget(self._pace(party), asyncio.get_running_loop().time())
        return self._budgets[party]

    def _pace(self, party: int) -> Pace:
        if party >= 0:
            return self._servers
        if party in self._charter.carriers:
            return self._couriers
        return self._clients

    def _welcome(self, link: Link, peer: int) -> None:
        """From now on this is the connection to the peer; an older one is taken to be dead."""
        old = self._peers.get(peer)
        if old is not None:
            old.drop("replaced")
            self.went(old)
        self._peers[peer] = link
        link.up_at = asyncio.get_running_loop().time()
        self.on_peer(peer, True)

    # In the background

    def _calls(self, context: ssl.SSLContext) -> Iterator[Coroutine[None, None, None]]:
        for server, address in self.addresses.items():
            if self._dials(server):
                yield keep(partial(Link, self, context, server), address, self._limits, self._rng)

    def _flush(self) -> None:
        filled = self._filled
        self._filled = []
        for link in filled:
            link.flush()

    async def _watch(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(min(limits.handshake_s, limits.ping_s, limits.silent_s) / 4)
            for link in list(self._links):
                self._tend(link, asyncio.get_running_loop().time())
            self._relieve()

    def _relieve(self) -> None:
        """Part with the slowest readers as long as too much waits for all of them together."""
        waiting = sorted(
            (link for link in self._links if not link.closed), key=lambda link: link.unread
        )
        total = sum(link.unread for link in waiting)
        while total > self._limits.queues:
            slowest = waiting.pop()
            total -= slowest.unread
            slowest.drop("slow")

    def _tend(self, link: Link, now: float) -> None:
        """Drop it if it is silent, and let it know of us if we were."""
        if link.closed:
            return
        if link.up_at is None:
            if now - link.came_at > self._limits.handshake_s:
                link.drop("slow handshake")
        elif not link.paused and now - link.heard_at > self._limits.silent_s:
            link.drop("silent")
        elif now - link.said_at > self._limits.ping_s:
            link.ping()

    async def _gone(self, timeout_s: float | None) -> None:
        if self._links:
            await asyncio.wait({link.gone for link in self._links}, timeout=timeout_s)
