"""Queues what peers have sent and nobody has processed yet: peers take turns, in bounded space."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container

from fedrfq.consensus.events import Event

# Room for what an honest peer sends while this process is busy: a server its proposals, lists and
# votes, a client one upload a round and a few questions.
_MAX_SERVER_BYTES = 64 << 20
_MAX_CLIENT_BYTES = 256 << 10


class FairQueue:
    """One queue per peer, from which events are taken in turn.

    A peer that sends a lot delays only itself. Couriers get the space of a server, because they
    carry the uploads of many clients.
    """

    def __init__(self, couriers: Container[int] = ()) -> None:
        self._couriers = couriers
        self._queues: defaultdict[int, deque[tuple[Event, int]]] = defaultdict(deque)
        self._bytes: Counter[int] = Counter()
        # Every peer with a non-empty queue is in here exactly once.
        self._turns: deque[int] = deque()

    def put(self, peer: int, event: Event, size: int = 0) -> bool:
        """Add an event and tell whether there was room for it."""
        queue = self._queues[peer]
        # An empty queue takes any event, however large: the bound is on what piles up, and
        # transport has bounded the frame already.
        if not queue:
            self._turns.append(peer)
        elif self._bytes[peer] + size > self._max_bytes(peer):
            return False
        queue.append((event, size))
        self._bytes[peer] += size
        return True

    def _max_bytes(self, peer: int) -> int:
        if peer >= 0 or peer in self._couriers:
            return _MAX_SERVER_BYTES
        return _MAX_CLIENT_BYTES

    def take(self) -> Event:
        """Remove and return the next event of the peer whose turn it is."""
        peer = self._turns.popleft()
        queue = self._queues[peer]
        event, size = queue.popleft()
        self._bytes[peer] -= size
        if queue:
            self._turns.append(peer)
        return event

    def __bool__(self) -> bool:
        return bool(self._turns)
