"""The uploads a server holds of one round, and which of those that others list are still missing."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.messages import Entry, Message, Upload

_MOST = 2  # uploads of a client that are listed: one is right, two prove that it lies


class UploadPool:
    """`clients`: how many are registered; greater numbers are servers', whose change proposals no round waits for."""

    def __init__(self, clients: int) -> None:
        # of how many registered clients something will stand in our list
        self.clients = clients
        self.held = 0
        self.uploads: dict[Entry, Message] = {}
        self.by_client: dict[int, list[Entry]] = {}  # what will stand in our list
        self.promised: set[Entry] = set()
        self.lacking: dict[
            int, set[Entry]
        ] = {}  # by server, what its list names and we do not hold
        self._firsts: dict[int, Message] = {}
        self._by_digest: dict[bytes, Message] = {}

    def store(self, entry: Entry, message: Message, promise: bool) -> None:
        """Hold a verified upload; `promise`: it came before the round was closed, and will be listed."""
        client, digest = entry
        self.uploads[entry] = self._by_digest[digest] = message
        self._firsts.setdefault(client, message)
        if promise and not self.full(client):
            self.held += client < self.clients and client not in self.by_client
            self.by_client.setdefault(client, []).append(entry)
            self.promised.add(entry)
        for lacking in self.lacking.values():
            lacking.discard(entry)

    def first(self, client: int) -> Message | None:
        return self._firsts.get(client)

    def full(self, client: int) -> bool:
        return len(self.by_client.get(client, ())) >= _MOST

    def entries(self) -> tuple[Entry, ...]:
        """Our list."""
        return tuple(sorted(self.promised))

    def missing(self, entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry not in self.uploads]

    def bodies(self, entries: Iterable[Entry]) -> list[Upload]:
        return [body for entry in entries if isinstance(body := self.uploads[entry].body, Upload)]

    def find(self, digest: bytes) -> Message | None:
        return self._by_digest.get(digest)
