"""Queues what peers have sent and nobody has processed yet: peers take turns, in bounded space.

Frames are queued as they came, and decoded by whoever takes them. So what it costs to decode a
peer's frames, like all that follows from them, comes out of that peer's own turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from fedrfq.consensus.events import Event

# Room for what an honest peer sends while this process is busy: a server its proposals, lists and
# votes, a client one upload a round and a few questions.
MAX_SERVER_BYTES = 64 << 20
MAX_CLIENT_BYTES = 256 << 10
# What a peer may spend in a turn. A larger frame has to wait for several: the larger it is, the
# longer it takes to decode and check.
TURN_BYTES = 16 << 10


class FairQueue:
    """One queue per peer, from which events and frames are taken in turn, one at a time.

    A peer that sends a lot delays only itself. Couriers get the space of a server, because they
    carry the uploads of many clients. There is something to take while there are `turns`.
    """

    def __init__(self, couriers: Container[int] = ()) -> None:
        self._couriers = couriers
        self._queues: dict[int, _PeerQueue] = {}
        # Every peer with a non-empty queue is in here exactly once.
        self.turns: deque[_PeerQueue] = deque()

    def put(self, peer: int, item: Event | bytes, size: int = 0) -> bool:
        """Add an event or a frame and tell whether there was room for it."""
        queue = self._queues.get(peer)
        if queue is None:
            queue = self._queues[peer] = _PeerQueue(peer, self._max_bytes(peer))
        # What there is room for does not depend on the item's size: an upload may be larger than
        # the bound, and transport has bounded the frame already.
        if queue.bytes >= queue.max_bytes:
            return False
        if not queue.items:
            self.turns.append(queue)
        queue.items.append((item, size))
        queue.bytes += size
        return True

    def _max_bytes(self, peer: int) -> int:
        if peer >= 0 or peer in self._couriers:
            return MAX_SERVER_BYTES
        return MAX_CLIENT_BYTES

    def take(self) -> tuple[int, Event | bytes]:
        """Remove and return the next item that a peer's turn is enough for, with the peer."""
        turns = self.turns
        while True:
            queue = turns.popleft()
            item, size = queue.items[0]
            if size <= queue.saved + TURN_BYTES:
                break
            queue.saved += TURN_BYTES
            turns.append(queue)
        queue.items.popleft()
        queue.bytes -= size
        queue.saved = 0
        if queue.items:
            turns.append(queue)
        return queue.peer, item

    def forget(self, peer: int) -> None:
        """Remove all that a peer has sent."""
        queue = self._queues.pop(peer, None)
        if queue is not None and queue.items:
            self.turns.remove(queue)


class _PeerQueue:
    """What one peer has sent, its size in bytes, and the most that it may be.

    `saved` are the bytes that the peer has saved up for its next frame, which is larger than a
    turn.
    """

    __slots__ = ("bytes", "items", "max_bytes", "peer", "saved")

    def __init__(self, peer: int, max_bytes: int) -> None:
        self.peer = peer
        self.max_bytes = max_bytes
        self.items: deque[tuple[Event | bytes, int]] = deque()
        self.bytes = 0
        self.saved = 0
