"""Queues what peers have sent and nobody has processed yet: peers take turns, in bounded space.

Frames are queued as they came, and decoded by whoever takes them. So what it costs to decode a
peer's frames, like all that follows from them, comes out of that peer's own turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container

from fedrfq.consensus.events import Event

# Room for what an honest peer sends while this process is busy: a server its proposals, lists and
# votes, a client one upload a round and a few questions.
_MAX_SERVER_BYTES = 64 << 20
_MAX_CLIENT_BYTES = 256 << 10
# What a peer may spend in a turn. A larger frame has to wait for several: the larger it is, the
# longer it takes to decode and check.
TURN_BYTES = 16 << 10


class FairQueue:
    """One queue per peer, from which events and frames are taken in turn, one at a time.

    A peer that sends a lot delays only itself. Couriers get the space of a server, because they
    carry the uploads of many clients.
    """

    def __init__(self, couriers: Container[int] = ()) -> None:
        self._couriers = couriers
        self._queues: defaultdict[int, deque[tuple[Event | bytes, int]]] = defaultdict(deque)
        self._bytes: Counter[int] = Counter()
        # Bytes that a peer has saved up for its next frame, which is larger than a turn.
        self._saved: Counter[int] = Counter()
        # Every peer with a non-empty queue is in here exactly once.
        self._turns: deque[int] = deque()

    def put(self, peer: int, item: Event | bytes, size: int = 0) -> bool:
        """Add an event or a frame and tell whether there was room for it."""
        queue = self._queues[peer]
        # What there is room for does not depend on the item's size: an upload may be larger than
        # the bound, and transport has bounded the frame already.
        if self._bytes[peer] >= self._max_bytes(peer):
            return False
        if not queue:
            self._turns.append(peer)
        queue.append((item, size))
        self._bytes[peer] += size
        return True

    def _max_bytes(self, peer: int) -> int:
        if peer >= 0 or peer in self._couriers:
            return _MAX_SERVER_BYTES
        return _MAX_CLIENT_BYTES

    def take(self) -> tuple[int, Event | bytes]:
        """Remove and return the next item that a peer's turn is enough for, with the peer."""
        while True:
            peer = self._turns.popleft()
            queue = self._queues[peer]
            item, size = queue[0]
            if size <= self._saved[peer] + TURN_BYTES:
                break
            self._saved[peer] += TURN_BYTES
            self._turns.append(peer)
        queue.popleft()
        self._bytes[peer] -= size
        self._saved[peer] = 0
        if queue:
            self._turns.append(peer)
        return peer, item

    def forget(self, peer: int) -> None:
        """Remove all that a peer has sent."""
        if self._queues[peer]:
            self._turns.remove(peer)
        self._queues[peer].clear()
        self._bytes[peer] = 0
        self._saved[peer] = 0

    def __bool__(self) -> bool:
        return bool(self._turns)
