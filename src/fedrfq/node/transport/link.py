"""One connection: frames over TLS over a socket, within a peer's budget."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Protocol, cast

from fedrfq.node.transport import failures
from fedrfq.node.transport.budget import Budget
from fedrfq.node.transport.frames import EMPTY, HEADER, Frames, Oversized, header
from fedrfq.node.transport.tls_stream import TlsStream

# All connections of the process read into this buffer. Its content is used up before the next
# connection's turn, and since one turn is one read of at most its size, peers are served evenly.
_READ_BUFFER = memoryview(bytearray(64 << 10))


class Owner(Protocol):
    """What a connection reports to."""

    counts: Counter[str]

    def on_open(self, link: Link) -> None:
        """There is a connection; nothing is known of its other end."""

    def on_certificate(self, link: Link, certificate: bytes) -> None:
        """The other end has proved to hold this certificate's key: `admit` it or `drop` it."""

    def on_frame(self, link: Link, data: bytes) -> None:
        """A frame has arrived; an empty one is a sign of life."""

    def on_queued(self, link: Link) -> None:
        """There is something to `flush`, and there was nothing before."""

    def on_closed(self, link: Link) -> None:
        """The connection is over."""

    def on_another_time(self, link: Link) -> None:
        """A party was refused because its certificate is not valid by this machine's clock."""


class Link(asyncio.BufferedProtocol):
    """One end of a connection. `peer` is None until the other end is identified.

    `dialled` is the party that this end has called, or None if this end was called.
    """

    def __init__(self, owner: Owner, context: ssl.SSLContext, dialled: int | None) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._tls = TlsStream(context, server_side=dialled is None)
        self._transport: asyncio.Transport | None = None
        # Frames to be flushed, each as its header and its data, and their size in bytes.
        self._queue: list[bytes] = []
        self._queue_size = 0
        self.dialled = dialled
        self.peer: int | None = None
        self.paused = False
        self.closed = False
        now = self._loop.time()
        self.opened_at = now
        self.heard_at = now
        self.sent_at = now
        # Since when both ends have known each other.
        self.up_at: float | None = None
        # Why the connection ended, in words.
        self.why = ""
        self.gone: asyncio.Future[None] = self._loop.create_future()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake if this end has dialled."""
        # Not asserted: transports of other event loops are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._owner.on_open(self)
        if self.dialled is not None:
            self._tls.handshake()
            self._write(self._tls.outgoing())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections share."""
        return _READ_BUFFER

    def buffer_updated(self, size: int) -> None:
        """Process what has been read; whatever is wrong with it ends the connection."""
        self.heard_at = self._loop.time()
        try:
            frames = self._read(_READ_BUFFER[:size])
        except Oversized:
            self.drop("oversized frame")
        except ssl.SSLZeroReturnError:
            self.drop("closed by the peer")
        except ssl.SSLCertVerificationError as error:
            self.drop("wrong certificate", failures.in_words(error))
            if failures.is_of_another_time(error):
                self._owner.on_another_time(self)
        except ssl.SSLError as error:
            why = "no handshake" if self.peer is None else "broken TLS"
            self.drop(why, failures.in_words(error))
        else:
            answer = self._tls.outgoing()
            if answer:
                self._write(answer)
            self._charge(frames, size)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner that the connection is over."""
        self._close("lost")
        self._owner.on_closed(self)
        self.gone.set_result(None)

    # Receiving

    def _read(self, data: memoryview) -> int:
        """Decrypt the data, pass its frames on, and return how many there were."""
        frames = 0
        for piece in self._tls.open(data):
            # The first piece comes when the handshake is complete. Identity comes before content:
            # no frame is cut before the owner has admitted the peer and so set its bounds.
            if self.peer is None and not self.closed:
                self._owner.on_certificate(self, self._tls.certificate or b"")
            if not self.closed:
                frames += self._pass_on(piece)
        return frames

    def _pass_on(self, piece: bytes) -> int:
        frames = 0
        for frame in self._frames.take(piece):
            frames += 1
            self._owner.on_frame(self, frame)
            # The frame may have been a reason to drop the peer; thousands may follow it.
            if self.closed:
                break
        return frames

    def admit(self, peer: int, budget: Budget) -> None:
        """Take the other end to be this party, and count what it sends against its budget."""
        self.peer = peer
        self._budget = budget
        self._max_unread = budget.pace.queue_bytes
        self._frames = Frames(budget.pace.frame_bytes)

    def _charge(self, frames: int, size: int) -> None:
        """Charge the peer's budget, and stop reading for as long as it is overdrawn."""
        if self.peer is None or self.closed:
            return
        counts = self._owner.counts
        counts["frames in"] += frames
        counts["bytes in"] += size
        wait_s = self._budget.spend(frames, size, self.heard_at)
        # While nothing is read, the kernel's buffers fill up and TCP slows the peer down.
        if wait_s and self._transport is not None:
            self.paused = True
            self._owner.counts["paused"] += 1
            self._transport.pause_reading()
            self._loop.call_later(wait_s, self._resume)

    def _resume(self) -> None:
        self.paused = False
        # The peer could not be heard meanwhile, so its silence counts from now.
        self.heard_at = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Sending

    def send(self, data: bytes) -> None:
        """Queue a frame. A peer that leaves too much unread is dropped."""
        if not self._queue:
            self._owner.on_queued(self)
        self._queue += (header(data), data)
        self._queue_size += HEADER + len(data)
        self._drop_if_slow()

    def flush(self) -> None:
        """Send everything queued in one write, which is much cheaper than one per frame."""
        if self._queue and not self.closed:
            self._owner.counts["frames out"] += len(self._queue) // 2
            data = b"".join(self._queue)
            self._queue_size = 0
            self._queue.clear()
            self.sent_at = self._loop.time()
            self._write(self._tls.seal(data))

    def ping(self) -> None:
        """Send a sign of life."""
        self.sent_at = self._loop.time()
        self._write(self._tls.seal(EMPTY))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self.closed:
            self._owner.counts["bytes out"] += len(data)
            self._transport.write(data)
            self._drop_if_slow()

    def _drop_if_slow(self) -> None:
        if self.peer is not None and self.unread > self._max_unread:
            self.drop("slow")

    @property
    def unread(self) -> int:
        """Bytes that wait for the other end to read them."""
        if self._transport is None:
            return self._queue_size
        return self._queue_size + self._transport.get_write_buffer_size()

    # Ending

    @property
    def host(self) -> str:
        """The other end's address, or 0.0.0.0 if it is gone already."""
        name = None
        if self._transport is not None:
            name = self._transport.get_extra_info("peername")
        if not name:
            return "0.0.0.0"
        return str(name[0])

    def finish(self) -> None:
        """Send what is queued and say goodbye; the other end then closes the connection."""
        self.flush()
        self._write(self._tls.goodbye())
        self._close("stopped")
        # Nothing more is processed, but only a link that reads notices that the other end closes.
        if self.paused:
            self._resume()

    def drop(self, why: str, words: str = "") -> None:
        """End the connection at once; if TLS has an alert with the reason, send that first.

        It is counted under `why`; `words` are for people.
        """
        self._write(self._tls.outgoing())
        self._close(why, words)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, why: str, words: str = "") -> None:
        # Only the first reason counts: a link that was dropped is also lost a moment later.
        if self.closed:
            return
        self.closed = True
        self.why = words or failures.ended(why)
        self._queue.clear()
        kind = "refused" if self.peer is None else "dropped"
        self._owner.counts[f"{kind}: {why}"] += 1
