"""The uploads of one round that a server holds, and those that it knows to be missing."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.messages import Entry, Message, Upload
from fedrfq.consensus.votes import Slots

# Uploads of one client that a server lists: one is right, and two prove that the client lies.
_MAX_LISTED = 2


class UploadPool:
    """The uploads of one round, and the servers' lists of them.

    `clients` is the number of registered clients. Greater client numbers are those of servers,
    whose change proposals are listed too, but no round waits for them.
    """

    __slots__ = (
        "_by_digest",
        "_first_by_client",
        "by_client",
        "clients",
        "held",
        "lacking",
        "last_lists",
        "lists",
        "promised",
        "uploads",
    )

    def __init__(self, clients: int, last_lists: Slots) -> None:
        self.clients = clients
        self.lists: Slots = {}  # what each server holds, by its own word
        # The lists of the previous round, with which receipts that come late are compared.
        self.last_lists = last_lists
        self.held = 0  # registered clients with an upload in our list
        self.uploads: dict[Entry, Message] = {}
        # What our list will have: the same entries by client and as a set.
        self.by_client: dict[int, list[Entry]] = {}
        self.promised: set[Entry] = set()
        # By server, the entries of its list that we do not hold.
        self.lacking: dict[int, set[Entry]] = {}
        self._first_by_client: dict[int, Message] = {}
        self._by_digest: dict[bytes, Message] = {}

    def store(self, entry: Entry, message: Message, promise: bool) -> None:
        """Keep a verified upload; `promise` says that the round is open, so it will be listed."""
        client, digest = entry
        self.uploads[entry] = message
        self._by_digest[digest] = message
        self._first_by_client.setdefault(client, message)
        if promise and not self.full(client):
            self.held += client < self.clients and client not in self.by_client
            self.by_client.setdefault(client, []).append(entry)
            self.promised.add(entry)
        for lacking in self.lacking.values():
            lacking.discard(entry)

    def first(self, client: int) -> Message | None:
        """Return the first upload that came from a client, if any."""
        return self._first_by_client.get(client)

    def full(self, client: int) -> bool:
        """Return whether no further upload of a client will be listed."""
        return len(self.by_client.get(client, ())) >= _MAX_LISTED

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries of our list."""
        return tuple(sorted(self.promised))

    def missing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return those of the entries whose uploads we do not hold."""
        return [entry for entry in entries if entry not in self.uploads]

    def bodies(self, entries: Iterable[Entry]) -> list[Upload]:
        """Return the uploads of these entries, all of which must be held."""
        return [body for entry in entries if isinstance(body := self.uploads[entry].body, Upload)]

    def find(self, digest: bytes) -> Message | None:
        """Return the upload with this digest, if we hold it."""
        return self._by_digest.get(digest)

    def expect(self, server: int, entries: Iterable[Entry]) -> None:
        """Note which uploads of a server's list we lack."""
        self.lacking[server] = set(self.missing(entries))

    def usable_lists(self) -> list[Message]:
        """Return the lists all of whose uploads we hold, by ascending server."""
        return [self.lists[server] for server in sorted(self.lists) if not self.lacking.get(server)]
