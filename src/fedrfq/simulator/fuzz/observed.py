"""What an all-seeing observer knows of a run: every upload, list and proposal that was ever sent, and who is honest.

Judged here by the keys and the definitions alone, apart from the rules that replicas use.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.messages import (
    Certificate,
    Commit,
    Entry,
    Kind,
    Message,
    PartKind,
    Prepare,
    PrePrepare,
    Upload,
    UploadList,
    encode,
    part_digest,
    write_entries,
)
from fedrfq.consensus.roster import Roster


def quorum(n: int) -> int:
    """The fewest of n servers of which any two groups share more than f: an honest one among them."""
    f = (n - 1) // 3
    return next(q for q in range(1, n + 1) if 2 * q - n > f)


def union(lists: Iterable[UploadList]) -> tuple[Entry, ...]:
    """The set that follows from lists: each client's upload, if it has one only."""
    entries = {entry for body in lists for entry in body.entries}
    clients = [client for client, _ in entries]
    return tuple(sorted(entry for entry in entries if clients.count(entry[0]) == 1))


class OmniscientView:
    def __init__(self, roster: Roster, honest: Iterable[int]) -> None:
        self.roster = roster
        self.honest = frozenset(honest)
        self.quorum = quorum(roster.n)
        self.fewest_lists = roster.n - (roster.n - 1) // 3
        self.clients = len(roster.clients)
        self.uploads: dict[bytes, Message] = {}  # properly signed, by digest
        self.signed: dict[
            tuple[int, int], set[bytes]
        ] = {}  # the digests a client signed in a round
        self.lists: dict[int, dict[int, UploadList]] = {}  # of honest servers, by round
        self.proposals: dict[tuple[int, bytes], list[PrePrepare]] = {}  # by round and value
        self.proposed: set[tuple[int, int, bytes, int]] = set()  # round, view, value, server
        self._noted: set[bytes] = set()

    def note(self, party: int, message: Message) -> None:
        """Somebody sends it."""
        body = message.body
        if message.raw in self._noted or message.run != self.roster.run:
            return
        if type(body) is Upload:
            self._note_upload(party, message, body)
        elif type(body) is PrePrepare and self.authentic(message):
            self._noted.add(message.raw)
            value = body.record.value(self.roster.run)
            self.proposals.setdefault((body.round, value), []).append(body)
            self.proposed.add((body.round, body.view, value, body.server))
        elif type(body) is UploadList and party == body.server and party in self.honest:
            self._noted.add(message.raw)
            self.lists.setdefault(body.round, {})[party] = body

    def _note_upload(self, party: int, message: Message, body: Upload) -> None:
        """An honest client's counts only if it sends it itself, whatever the signature."""
        who = self.who(~body.client)
        if (party == who or who not in self.honest) and self.authentic(message):
            self._noted.add(message.raw)
            digest = message.digest
            self.uploads[digest] = message
            self.signed.setdefault((body.round, body.client), set()).add(digest)

    def who(self, party: int | None) -> int | None:
        """The person behind a party: the client numbers after the last are servers 0, 1, 2, …"""
        if party is None or ~party < self.clients:
            return party
        return ~party - self.clients

    def authentic(self, message: Message) -> bool:
        party = message.author
        return (
            party is not None
            and message.run == self.roster.run
            and self.signed_by(party, message.raw, message.signature)
        )

    def signed_by(self, party: int, raw: bytes, signature: bytes) -> bool:
        key = self.roster.keys.get(party)
        return key is not None and self.roster.scheme.verify(key, raw, signature)

    def certifies(self, certificate: Certificate, phase: Kind) -> bool:
        record = certificate.record
        run = self.roster.run
        vote = Prepare if phase == Kind.PREPARE else Commit
        value = record.value(run)
        good = {
            server
            for server, signature in certificate.signatures
            if self.signed_by(
                server, encode(run, vote(record.round, certificate.view, value, server)), signature
            )
        }
        return (
            certificate.phase == phase and len(good) == len(certificate.signatures) >= self.quorum
        )

    def justified_set(self, round_: int, value: bytes) -> tuple[Entry, ...] | None:
        """The set of a value some proposal of which follows from lists as it should."""
        for body in self.proposals.get((round_, value), []):
            entries = self._set_of(body)
            if (
                entries is not None
                and part_digest(PartKind.SET, write_entries(entries)) == body.record.set_
            ):
                return entries
        return None

    def _set_of(self, body: PrePrepare) -> tuple[Entry, ...] | None:
        lists = [
            m.body
            for m in body.lists
            if isinstance(m.body, UploadList) and m.body.round == body.round and self.authentic(m)
        ]
        distinct = {each.server for each in lists}
        if len(lists) == len(distinct) == self.fewest_lists:
            return union(lists)
        return None
