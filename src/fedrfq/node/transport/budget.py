"""Bounds on what a peer may ask of this process: sizes, rates, times and numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq.consensus.sizes import sizes_of
from fedrfq.consensus.wire import Sizes
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import max_successor_bytes
from fedrfq.federation.retained import MARK
from fedrfq.prototypes.fixed_point import size

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Pace:
    """What one peer may send and be sent.

    A peer that exceeds a rate is not read from until enough time has passed to make up for it.
    """

    # A larger frame ends the connection.
    frame_bytes: int
    # Bytes that may wait for the peer to read them; a slower reader is disconnected.
    queue_bytes: int
    # Rates per second; bytes are counted as they come over the wire, TLS included.
    frames_s: float
    bytes_s: float
    # This many seconds' worth may come at once.
    burst_s: float = 2.0


@dataclass(frozen=True)
class Limits:
    """All bounds of a party's connections. A pace of None is derived from the federation."""

    server: Pace | None = None
    client: Pace | None = None
    courier: Pace | None = None
    # Connections not yet identified. Each handshake takes some 60 KB, so this is 60 MB at worst.
    pending: int = 1024
    # Those from one address; many clients may be behind one.
    pending_per_address: int = 256
    # Bytes waiting for all peers together; beyond that the slowest readers are disconnected.
    total_queue_bytes: int = 256 * MIB
    # Time to identify oneself: a few round trips, and a turn on a busy processor.
    handshake_s: float = 5.0
    # An idle peer is sent a sign of life this often.
    ping_s: float = 5.0
    # A peer not heard from for this long is gone: it has missed four pings.
    silent_s: float = 20.0
    # The first and the longest wait between two attempts to connect.
    backoff_s: tuple[float, float] = (0.05, 5.0)
    # Time for queued data to leave when this party stops.
    drain_s: float = 2.0


def server_pace(federation: Federation) -> Pace:
    """Return the pace of a server.

    A leader's proposal carries up to n lists of all clients, evidence two uploads, and a change
    proposal the text of a federation. Ten thousand messages a second are ten times what 100 commits
    a second need, and what one core can verify.
    """
    # A client that sent two uploads has two entries of 36 bytes in a list, 80 with some slack.
    lists = 80 * len(federation.servers) * len(federation.clients)
    # Evidence quotes two of them. If it did not fit, handing it on would cost the connection.
    quoted = max(_upload_bytes(federation), max_successor_bytes(federation))
    frame_bytes = 2 * MIB + 2 * quoted + lists
    return Pace(frame_bytes, queue_bytes=4 * frame_bytes, frames_s=10_000, bytes_s=64 * MIB)


def client_pace(federation: Federation) -> Pace:
    """Return the pace of a client.

    It sends one upload a round and a few questions: at 100 commits a second, less than half of
    these rates. A few rounds' certificates and results may wait for it, and a result may contain
    the text of a federation.
    """
    frame_bytes = _upload_bytes(federation) + 4 * KIB
    return Pace(
        frame_bytes,
        queue_bytes=MIB + 8 * frame_bytes + max_successor_bytes(federation),
        frames_s=1_000,
        bytes_s=max(4 * MIB, 100.0 * frame_bytes),
    )


def courier_pace(federation: Federation) -> Pace:
    """Return the pace of a courier.

    It sends the uploads of all clients in a round, so it gets the rates of a server; but each frame
    is a client's. Its queue also has to hold the clients' receipts.
    """
    return replace(server_pace(federation), frame_bytes=client_pace(federation).frame_bytes)


def honest_sizes(federation: Federation) -> Sizes:
    """Return how large the messages of honest parties can be."""
    upload = max(_upload_bytes(federation) + KIB, max_successor_bytes(federation))
    return sizes_of(federation.roster, upload)


def _upload_bytes(federation: Federation) -> int:
    """Return the largest size of an upload, of the globals, or of the public statistics."""
    task = federation.task
    rows = task.classes * (8 + 4 * task.values)
    if task.public is None:
        return rows
    public = size(np.array([task.public.rows]), task.public.values, task.public.precision)
    if task.is_revocable:
        public += len(MARK)
    return max(rows, public)


class Budget:
    """What a party has left of its pace, on all its connections together."""

    def __init__(self, pace: Pace, now: float) -> None:
        self.pace = pace
        self._frames = Bucket(pace.frames_s, pace.burst_s, now)
        self._bytes = Bucket(pace.bytes_s, pace.burst_s, now)

    def spend(self, frames: int, size: int, now: float) -> float:
        """Return for how many seconds nothing more should be read; 0 within the budget."""
        return max(self._frames.spend(frames, now), self._bytes.spend(size, now))


class Bucket:
    """A token bucket that may be overdrawn: the debt is a time to wait.

    What was read has been read, so refusing to count it would help nobody.
    """

    __slots__ = ("_burst", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self._rate = rate
        self._burst = rate * burst_s
        self._updated = now
        self._tokens = self._burst

    def spend(self, amount: float, now: float) -> float:
        """Take the amount and return the seconds until the debt is repaid; 0 if there is none."""
        refill = (now - self._updated) * self._rate
        self._tokens = min(self._burst, self._tokens + refill) - amount
        self._updated = now
        return max(0.0, -self._tokens / self._rate)


class Allowance:
    """A token bucket that is never overdrawn: what exceeds it is refused and owes nothing."""

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = burst
        self._updated = now

    def take(self, now: float) -> bool:
        """Take one token, and tell whether there was one."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
