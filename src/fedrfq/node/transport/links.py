"""A party's connections to all others, one for each pair.

Servers are numbered. Of two servers the one with the higher number dials, and clients and couriers
dial all servers. A frame counts as sent by the party with whose certificate its connection
was opened. Nothing that a peer or a stranger does is raised or logged here: it is counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from functools import partial
from random import Random

from fedrfq.errors import UserError
from fedrfq.federation.members import endpoint
from fedrfq.files.atomic import raise_open_file_limit
from fedrfq.node.logs import log_peer_event
from fedrfq.node.membership import renewal
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
from fedrfq.node.transport.dial import keep_connected
from fedrfq.node.transport.door import Door
from fedrfq.node.transport.link import Link

# Connections that the kernel keeps until they are accepted; asyncio accepts all of them at once.
_BACKLOG = 512
# Open files besides the connections that are counted: those just accepted, logs, listeners.
_SPARE_FILES = _BACKLOG + 128


class Links:
    """The connections of one party.

    `hear(peer, data)` is called for every frame, `on_peer(peer, is_connected)` when a peer has come
    or gone, and `on_unreachable(peer, why)` when a server cannot be connected to for another reason
    than before. `on_wrong_clock(host)` is called when a party was refused because its certificate
    is not valid by this machine's clock. `addresses` are those of the servers, and may be changed
    before the start.
    """

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
        self._federation = identity.federation
        self._hear = hear
        self._limits = limits or Limits()
        self._rng = rng or Random()
        self._server_pace = self._limits.server or server_pace(self._federation)
        self._client_pace = self._limits.client or client_pace(self._federation)
        self._courier_pace = self._limits.courier or courier_pace(self._federation)
        self.addresses = {
            server: endpoint(self._federation.members[server].address)
            for server in range(self._federation.roster.n)
        }
        self._bind = bind or self.addresses.get(self._me)
        self._budgets: dict[int, Budget] = {}
        # `_peers` has one link per identified peer; `_links` also those still shaking hands, or
        # dropped and not yet closed.
        self._peers: dict[int, Link] = {}
        self._links: set[Link] = set()
        self._door: Door[Link] = Door(self._max_pending(), self._limits.pending_per_address)
        self._to_flush: list[Link] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._credentials = renewal.credentials(identity)
        self._contexts: list[ssl.SSLContext] = []
        # Where this server listens, once started.
        self.address: tuple[str, int]
        self.counts: Counter[str] = Counter()
        # Why servers that this party dials are not connected, in words.
        self.unreachable: dict[int, str] = {}
        self.on_peer: Callable[[int, bool], None] = lambda peer, is_connected: None
        self.on_unreachable: Callable[[int, str], None] = lambda peer, why: None
        self.on_wrong_clock: Callable[[str], None] = lambda host: None

    def _max_pending(self) -> int:
        """Return how many strangers may be connected without using up this process's open files.

        If they did, accepting a connection would fail for everybody.
        """
        reserved = len(self._federation.members) + _SPARE_FILES
        room = raise_open_file_limit(reserved + self._limits.pending) - reserved
        return max(1, min(self._limits.pending, room))

    # For the driver

    async def start(self) -> None:
        """Listen, if this is a server, and dial; raise OSError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._credentials = renewal.renew_if_due(self._identity)
        if self._bind is not None:
            context = tls.server_context(self._identity, self._credentials)
            self._contexts.append(context)
            self._server = await loop.create_server(
                lambda: Link(self, context, None), *self._bind, backlog=_BACKLOG
            )
            self.address = self._server.sockets[0].getsockname()[:2]
        dialling = tls.client_context(self._identity, self._credentials)
        self._contexts.append(dialling)
        dials = self._dials_to_keep(dialling)
        self._tasks = [loop.create_task(each) for each in (self._watch(), *dials)]

    async def stop(self) -> None:
        """Send what is queued, for a bounded time, and close everything."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        # No new connections before the old ones are closed, or there would be no end to it.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links):
            if link.peer is not None:
                link.finish()
            else:
                link.drop("stopped")
        await self._wait_until_gone(self._limits.drain_s)
        for link in list(self._links):
            link.drop("stopped")
        await self._wait_until_gone(None)

    def send(self, to: int, data: bytes) -> None:
        """Queue a frame for a peer; it is lost if the peer is not connected.

        It leaves at the end of this turn of the loop, in one write with all else for this peer.
        """
        link = self._peers.get(to)
        if link is None or link.closed:
            self.counts["unsent"] += 1
        else:
            link.send(data)

    def drop(self, peer: int, why: str) -> None:
        """Disconnect a peer, counted under the reason. It may come back."""
        if peer in self._peers:
            self._peers[peer].drop(why)

    def connected(self) -> set[int]:
        """Return the peers that are connected and identified."""
        return set(self._peers)

    @property
    def certificate_expires(self) -> datetime:
        """When the certificate expires that this party shows at present."""
        return self._credentials.expires

    def unread(self, peer: int) -> int:
        """Return how many bytes wait for a peer to read them."""
        link = self._peers.get(peer)
        if link is None:
            return 0
        return link.unread

    # For a link

    def on_open(self, link: Link) -> None:
        """Let a new connection wait at the door until its other end is identified."""
        self._links.add(link)
        self.counts["connections"] += 1
        # It may have been accepted just before the listener was closed.
        if self._stopped:
            link.drop("stopped")
        elif link.dialled is None:
            oldest = self._door.enter(link, link.host)
            if oldest is not None:
                self._door.leave(oldest)
                oldest.drop("too many")

    def on_certificate(self, link: Link, certificate: bytes) -> None:
        """Admit the party with this certificate, if it is one that this connection expects."""
        party = tls.party(self._federation, certificate)
        if party is None or not self._expects(link, party):
            link.drop("wrong certificate")
            return
        self._door.leave(link)
        link.admit(party, self._budget(party))
        if link.dialled is None:
            self._welcome(link, party)
            # In TLS 1.3 the dialling end is done before its certificate has been checked. This
            # ping tells it that it was accepted; it takes the link to be up only then.
            link.ping()

    def on_frame(self, link: Link, data: bytes) -> None:
        """Pass a frame on. The first one on a connection that we dialled confirms it."""
        peer = link.peer
        assert peer is not None
        if link.up_at is None:
            self._welcome(link, peer)
        if data:
            self._hear(peer, data)

    def on_queued(self, link: Link) -> None:
        """Flush the link at the end of this turn of the loop."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(link)

    def on_closed(self, link: Link) -> None:
        """Forget a connection."""
        self._links.discard(link)
        self._door.leave(link)
        # A newer connection may have taken this one's place.
        if link.peer is not None and self._peers.get(link.peer) is link:
            del self._peers[link.peer]
            self.on_peer(link.peer, False)

    def on_another_time(self, link: Link) -> None:
        """Report a party that was refused for its certificate's dates; strangers have none."""
        if link.dialled is None:
            self.on_wrong_clock(link.host)

    # Who is who

    def _expects(self, link: Link, party: int) -> bool:
        """Tell whether this party may be at the other end.

        Of each pair exactly one side dials, so a call from a party that we dial is refused. That
        includes this party itself, or someone who has its key.
        """
        if link.dialled is not None:
            return party == link.dialled
        return party < 0 or party > self._me

    def _dials(self, server: int) -> bool:
        return self._me < 0 or server < self._me

    def _budget(self, party: int) -> Budget:
        """Return a party's budget; it outlives connections, so coming back does not renew it."""
        if party not in self._budgets:
            self._budgets[party] = Budget(self._pace(party), asyncio.get_running_loop().time())
        return self._budgets[party]

    def _pace(self, party: int) -> Pace:
        if party >= 0:
            return self._server_pace
        if party in self._federation.courier_numbers:
            return self._courier_pace
        return self._client_pace

    def _welcome(self, link: Link, peer: int) -> None:
        """Use this connection for the peer from now on.

        If there is an older one, the peer has lost it: it opens a second one only after a crash or
        a broken network, which this end may not have noticed.
        """
        old = self._peers.get(peer)
        if old is not None:
            old.drop("replaced")
            # At once, so that `on_peer` reports the end of the old one before the new one.
            self.on_closed(old)
        self._peers[peer] = link
        self.unreachable.pop(peer, None)
        link.up_at = asyncio.get_running_loop().time()
        self.on_peer(peer, True)

    # In the background

    def _dials_to_keep(self, context: ssl.SSLContext) -> Iterator[Coroutine[None, None, None]]:
        for server, address in self.addresses.items():
            if self._dials(server):
                dial = partial(Link, self, context, server)
                failed = partial(self._failed, server)
                yield keep_connected(dial, address, self._limits, self._rng, failed)

    def _failed(self, server: int, why: str) -> None:
        """Note why a server is not connected, and report it unless that is known already."""
        if self.unreachable.get(server) != why:
            self.unreachable[server] = why
            self.on_unreachable(server, why)

    def _flush(self) -> None:
        # Emptied first, so that a frame queued from now on schedules its own flush.
        links = self._to_flush
        self._to_flush = []
        for link in links:
            link.flush()

    async def _watch(self) -> None:
        limits = self._limits
        # Four times in the shortest limit, so that none is overrun by more than a quarter.
        period_s = min(limits.handshake_s, limits.ping_s, limits.silent_s) / 4
        while True:
            await asyncio.sleep(period_s)
            for link in list(self._links):
                self._check(link, asyncio.get_running_loop().time())
            self._drop_slowest()
            self._renew_certificate()

    def _renew_certificate(self) -> None:
        """Renew the certificate if it is due; connections that are open stay so.

        A clock that was ahead, and was set right, leaves one that is not valid yet: then those in
        the folder are looked through again.
        """
        if self._credentials.begins <= datetime.now(UTC) < self._credentials.renew_at:
            return
        try:
            self._credentials = renewal.renew_if_due(self._identity)
            for context in self._contexts:
                tls.use(context, self._credentials)
        except (UserError, OSError) as error:
            # It is tried again: until the certificate has expired, nothing is lost.
            log_peer_event("the certificate cannot be renewed", "error", why=str(error))

    def _drop_slowest(self) -> None:
        """Drop the slowest readers as long as too much waits for all peers together."""
        links = [link for link in self._links if not link.closed]
        links.sort(key=lambda link: link.unread)
        total = sum(link.unread for link in links)
        while total > self._limits.total_queue_bytes:
            slowest = links.pop()
            total -= slowest.unread
            slowest.drop("slow")

    def _check(self, link: Link, now: float) -> None:
        """Drop a link that has been silent for too long, and ping it if we have been."""
        if link.closed:
            return
        if link.up_at is None:
            if now - link.opened_at > self._limits.handshake_s:
                link.drop("slow handshake")
        # A paused peer is silent because we do not read.
        elif not link.paused and now - link.heard_at > self._limits.silent_s:
            link.drop("silent")
        elif now - link.sent_at > self._limits.ping_s:
            link.ping()

    async def _wait_until_gone(self, timeout_s: float | None) -> None:
        if self._links:
            await asyncio.wait({link.gone for link in self._links}, timeout=timeout_s)
