"""One connection: frames over TLS over a socket, within a peer's budget."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Protocol

from fedrfq.node.transport.budget import Budget
from fedrfq.node.transport.frames import EMPTY, HEADER, Frames, Oversized, header
from fedrfq.node.transport.tls_stream import TlsStream

# Read into by all connections of the process: what is in it is used up before the next one's turn, and since a turn is one
# reading of this, peers are served evenly.
_TURN = memoryview(bytearray(64 << 10))


class Owner(Protocol):
    """Whoever a connection reports to."""

    counts: Counter[str]

    def came(self, link: Link) -> None:
        """There is a connection; nothing is known of its other end."""

    def shown(self, link: Link, certificate: bytes) -> None:
        """The other end has proved to hold this certificate's key: `admit` it, or `drop` the link."""

    def heard(self, link: Link, data: bytes) -> None:
        """A frame has come; an empty one is a sign of life."""

    def filled(self, link: Link) -> None:
        """There is something to `flush`, where there was nothing."""

    def went(self, link: Link) -> None:
        """The connection is over."""


class Link(asyncio.BufferedProtocol):
    """`peer` is none until the other end is identified."""

    def __init__(self, owner: Owner, context: ssl.SSLContext, dialled: int | None) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._tls = TlsStream(context, server_side=dialled is None)
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []  # to be flushed
        self._size = 0  # bytes of it
        self.dialled = dialled  # whom we called; none: we were
        self.peer: int | None = None
        self.paused = self.closed = False
        self.came_at = self.heard_at = self.said_at = self._loop.time()
        self.up_at: float | None = None  # since when the two ends have known each other
        self.gone: asyncio.Future[None] = self._loop.create_future()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.came(self)
        if self.dialled is not None:
            self._tls.handshake()
            self._write(self._tls.outgoing())

    def get_buffer(self, sizehint: int) -> memoryview:
        return _TURN

    def buffer_updated(self, size: int) -> None:
        self.heard_at = self._loop.time()
        try:
            frames = self._read(_TURN[:size])
        except Oversized:
            self.drop("oversized frame")
        except ssl.SSLZeroReturnError:
            self.drop("closed by the peer")
        except ssl.SSLCertVerificationError:
            self.drop("wrong certificate")
        except ssl.SSLError:
            self.drop("broken TLS" if self.peer is not None else "no handshake")
        else:
            self._write(self._tls.outgoing())
            self._pay(frames, size)

    def connection_lost(self, error: Exception | None) -> None:
        self._close("lost")
        self._owner.went(self)
        self.gone.set_result(None)

    # What comes

    def _read(self, data: memoryview) -> int:
        """Pass on what is in it, unless the connection is at its end; how many frames that were."""
        frames = 0
        for piece in self._tls.open(data):
            if self.peer is None and not self.closed:
                self._owner.shown(self, self._tls.certificate or b"")
            frames += 0 if self.closed else self._pass_on(piece)
        return frames

    def _pass_on(self, piece: bytes) -> int:
        frames = 0
        for frame in self._frames.take(piece):
            frames += 1
            self._owner.heard(self, frame)
            if self.closed:
                break
        return frames

    def admit(self, peer: int, budget: Budget) -> None:
        """The other end is this party: what it sends counts from now on."""
        self.peer = peer
        self._budget = budget
        self._frames = Frames(budget.pace.frame)

    def _pay(self, frames: int, size: int) -> None:
        """Read no more for as long as the budget is overdrawn."""
        if self.peer is None or self.closed:
            return
        self._owner.counts["frames in"] += frames
        self._owner.counts["bytes in"] += size
        wait = self._budget.spend(frames, size, self.heard_at)
        if wait and self._transport is not None:
            self.paused = True
            self._owner.counts["paused"] += 1
            self._transport.pause_reading()
            self._loop.call_later(wait, self._resume)

    def _resume(self) -> None:
        self.paused, self.heard_at = False, self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # What goes

    def say(self, data: bytes) -> None:
        """Queue a frame. A peer that leaves too much unread is dropped."""
        if not self._waiting:
            self._owner.filled(self)
        self._waiting += (header(data), data)
        self._size += HEADER + len(data)
        self._bound()

    def flush(self) -> None:
        """All that is queued, in one write."""
        if self._waiting and not self.closed:
            self._owner.counts["frames out"] += len(self._waiting) // 2
            data = b"".join(self._waiting)
            self._size = 0
            self._waiting.clear()
            self.said_at = self._loop.time()
            self._write(self._tls.seal(data))

    def ping(self) -> None:
        self.said_at = self._loop.time()
        self._write(self._tls.seal(EMPTY))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self.closed:
            self._owner.counts["bytes out"] += len(data)
            self._transport.write(data)
            self._bound()

    def _bound(self) -> None:
        if self.peer is not None and self.unread > self._budget.pace.queue:
            self.drop("slow")

    @property
    def unread(self) -> int:
        """Bytes that wait for the other end to read."""
        return self._size + (
            self._transport.get_write_buffer_size() if self._transport is not None else 0
        )

    # The end

    @property
    def host(self) -> str:
        """The other end's address."""
        if self._transport is not None:
            name = self._transport.get_extra_info("peername")
        else:
            name = None
        # gone already
        if name:
            return str(name[0])
        return "0.0.0.0"

    def finish(self) -> None:
        """Send what is queued and say goodbye; the other end then closes. Nothing more is heard."""
        self.flush()
        self._write(self._tls.goodbye())
        self._close("stopped")
        if self.paused:
            self._resume()

    def drop(self, why: str) -> None:
        """End it at once, with an alert if TLS has one to tell the reason."""
        self._write(self._tls.outgoing())
        self._close(why)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, why: str) -> None:
        if not self.closed:
            self.closed = True
            self._waiting.clear()
            self._owner.counts[f"{'refused' if self.peer is None else 'dropped'}: {why}"] += 1
