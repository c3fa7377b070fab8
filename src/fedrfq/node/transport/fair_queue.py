"""What peers have sent and nobody has read yet: they take turns, and each has room for so many bytes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container

from fedrfq.consensus.events import Event

_SERVER_BYTES = 64 << 20
_CLIENT_BYTES = 256 << 10


class FairQueue:
    """One queue a peer, emptied one event of each at a time: who sends much waits for himself."""

    def __init__(self, couriers: Container[int] = ()) -> None:
        self._couriers = couriers  # who carries the uploads of many needs the room of a server
        self._queues: defaultdict[int, deque[tuple[Event, int]]] = defaultdict(deque)
        self._bytes: Counter[int] = Counter()  # in each queue
        self._next: deque[int] = deque()  # whose turn it is

    def put(self, peer: int, event: Event, size: int = 0) -> bool:
        """Whether there was room. There always is for one event, however large."""
        queue = self._queues[peer]
        if not queue:
            self._next.append(peer)
        elif self._bytes[peer] + size > self._room(peer):
            return False
        queue.append((event, size))
        self._bytes[peer] += size
        return True

    def _room(self, peer: int) -> int:
        if peer >= 0 or peer in self._couriers:
            return _SERVER_BYTES
        return _CLIENT_BYTES

    def take(self) -> Event:
        """The next event of the peer whose turn it is."""
        peer = self._next.popleft()
        queue = self._queues[peer]
        event, size = queue.popleft()
        self._bytes[peer] -= size
        if queue:
            self._next.append(peer)
        return event

    def __bool__(self) -> bool:
        return bool(self._next)
