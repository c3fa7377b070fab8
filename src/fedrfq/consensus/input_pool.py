"""What parties contribute to one round, as far as a server holds it or knows it to be missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar, cast

from fedrfq.consensus.messages import ChangeProposal, Entries, Entry, Message, Upload

Body = TypeVar("Body", Upload, ChangeProposal)
# Messages of one party that a server lists: one is right, and two prove that the party lies.
_MAX_LISTED = 2


class InputPool(Generic[Body]):
    """The uploads of the clients in one round, or the change proposals of the servers."""

    __slots__ = (
        "_by_digest",
        "_first_by_party",
        "by_party",
        "lacking",
        "messages",
        "promised",
    )

    def __init__(self) -> None:
        self.messages: dict[Entry, Message] = {}
        # What our list will have: the same entries by party and as a set.
        self.by_party: dict[int, list[Entry]] = {}
        self.promised: set[Entry] = set()
        # By server, the entries of its list that we do not hold.
        self.lacking: dict[int, set[Entry]] = {}
        self._first_by_party: dict[int, Message] = {}
        self._by_digest: dict[bytes, Message] = {}

    @property
    def held(self) -> int:
        """How many parties will have an entry in our list."""
        return len(self.by_party)

    def store(self, entry: Entry, message: Message, promise: bool) -> None:
        """Keep a verified message; `promise` says that the round is open, so it will be listed."""
        party, digest = entry
        self.messages[entry] = message
        self._by_digest[digest] = message
        self._first_by_party.setdefault(party, message)
        if promise and not self.full(party):
            self.by_party.setdefault(party, []).append(entry)
            self.promised.add(entry)
        for lacking in self.lacking.values():
            lacking.discard(entry)

    def first(self, party: int) -> Message | None:
        """Return the first message that came from a party, if any."""
        return self._first_by_party.get(party)

    def full(self, party: int) -> bool:
        """Return whether no further message of a party will be listed."""
        return len(self.by_party.get(party, ())) >= _MAX_LISTED

    def entries(self) -> Entries:
        """Return the entries of our list."""
        return tuple(sorted(self.promised))

    def expect(self, server: int, entries: Entries) -> None:
        """Note which entries of a server's list we lack."""
        self.lacking[server] = {entry for entry in entries if entry not in self.messages}

    def missing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return those of the entries whose messages we do not hold."""
        return [entry for entry in entries if entry not in self.messages]

    def bodies(self, entries: Entries) -> list[Body]:
        """Return what these entries stand for, all of which must be held."""
        return [cast(Body, self.messages[entry].body) for entry in entries]

    def find(self, digest: bytes) -> Message | None:
        """Return the message with this digest, if we hold it."""
        return self._by_digest.get(digest)
