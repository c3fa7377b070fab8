"""How much a peer may ask of this process: sizes, rates, times and numbers, all of them bounded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrfq.federation.federation_file import Federation

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Pace:
    """What one peer may send and be sent. Who exceeds a rate is not read from until time has made up for it."""

    frame: int  # bytes of a frame; a larger one ends the connection
    queue: int  # bytes that may wait for a peer to read them; a slower one is disconnected
    frames_s: float  # frames a second
    bytes_s: float  # bytes a second, as they come over the wire
    burst_s: float = 2.0  # so many seconds' worth may come at once


@dataclass(frozen=True)
class Limits:
    """All bounds of the network. Where no pace is given it follows from the charter."""

    server: Pace | None = None
    client: Pace | None = None
    courier: Pace | None = None
    pending: int = 1024  # connections not yet identified: some 60 MB of handshakes at worst
    pending_per_address: int = 256  # of them from one address; many clients may stand behind one
    queues: int = (
        256 * MIB
    )  # bytes that wait for all peers together; where there are more, the slowest is disconnected
    handshake_s: float = 5.0  # to say who one is: a few round trips, and a turn at a busy processor
    ping_s: float = 5.0  # an idle peer is told so often that this one lives
    silent_s: float = 20.0  # a peer not heard for so long is gone: four pings missed
    backoff_s: tuple[float, float] = (
        0.05,
        5.0,
    )  # between two attempts to connect: first and longest
    drain_s: float = 2.0  # for what is queued to leave when everything stops


def server_pace(federation: Federation) -> Pace:
    """A proposal carries up to n lists of all clients, evidence two uploads, a change proposal the text of a federation. Ten thousand
    messages a second are ten times what 100 commits need, and what one core can verify."""
    lists = 80 * len(federation.servers) * len(federation.clients)
    frame = 2 * MIB + 2 * _upload(federation) + 4 * len(federation.text) + lists
    return Pace(frame, queue=4 * frame, frames_s=10_000, bytes_s=64 * MIB)


def client_pace(federation: Federation) -> Pace:
    """One upload a round and a few questions: at 100 commits a second less than half of this. What waits for a client are
    certificates and results, a few rounds of them; a result may hold the text of a federation."""
    frame = _upload(federation) + 4 * KIB
    return Pace(
        frame,
        queue=MIB + 8 * frame + 2 * len(federation.text),
        frames_s=1_000,
        bytes_s=max(4 * MIB, 100.0 * frame),
    )


def courier_pace(federation: Federation) -> Pace:
    """All clients' uploads a round, each in a frame no larger than a client's; what waits for it are their receipts, too."""
    return replace(server_pace(federation), frame=client_pace(federation).frame)


def _upload(federation: Federation) -> int:
    """Bytes of an upload, or of the globals, at most."""
    return federation.task.classes * (8 + 4 * federation.task.values)


class Budget:
    """What a party has left of its pace, by whatever connection it comes."""

    def __init__(self, pace: Pace, now: float) -> None:
        self.pace = pace
        self._frames = Bucket(pace.frames_s, pace.burst_s, now)
        self._bytes = Bucket(pace.bytes_s, pace.burst_s, now)

    def spend(self, frames: int, size: int, now: float) -> float:
        """Seconds for which nothing more should be read; 0 within the budget."""
        return max(self._frames.spend(frames, now), self._bytes.spend(size, now))


class Bucket:
    """Tokens that come back at a rate, up to a burst's worth. It may be overdrawn: the debt is a time to wait."""

    __slots__ = ("_burst", "_held", "_rate", "_seen")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self._rate = rate
        self._burst = rate * burst_s
        self._seen = now
        self._held = self._burst

    def spend(self, amount: float, now: float) -> float:
        """Seconds until nothing is owed; 0 within the budget."""
        self._held = min(self._burst, self._held + (now - self._seen) * self._rate) - amount
        self._seen = now
        return max(0.0, -self._held / self._rate)


class Allowance:
    """So many of something at once, and so many a second; what is more is refused, and owes nothing."""

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._since = now

    def take(self, now: float) -> bool:
        """One, if there is one left."""
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
