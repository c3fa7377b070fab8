"""What holds by itself, given the public keys alone: replicas, clients and auditors judge by the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import eq, lt

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    COMMIT,
    PARTS,
    PREPARE,
    AnyMessage,
    Certificate,
    Commit,
    Entry,
    Evidence,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    Record,
    Upload,
    UploadList,
    ViewChange,
    author,
    encode,
    part_digest,
    write_entries,
)
from fedrfq.consensus.roster import Roster, Signer

Entries = tuple[Entry, ...]
_REMEMBERED = 1024  # certificates


class Rules:
    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.run = roster.run
        self._keys = roster.keys
        self._verify = roster.scheme.verify
        self._certified: set[Certificate] = set()  # found right before

    def signed(self, body: AnyMessage, signer: Signer) -> Message:
        return Message(self.run, body, None, signer)

    def unsigned(self, body: AnyMessage) -> Message:
        return Message(self.run, body)

    def authentic(self, message: Message) -> bool:
        """Signed, for this run, by the party it names. Found once, this is not computed again."""
        if message.vouched is self:
            return True
        party = message.author
        if party is None or message.run != self.run:
            key = None
        else:
            key = self._keys.get(party)
        if key is None or not self._verify(key, message.raw, message.signature):
            return False
        message.vouched = self
        return True

    def _signed_by(self, party: int, raw: bytes, signature: bytes) -> bool:
        key = self._keys.get(party)
        return key is not None and self._verify(key, raw, signature)

    def proper(self, message: Message) -> bool:
        """Whether a list, a view change or a proposal is what it must be. Found once, this is not computed again."""
        if message.sound is self:
            return True
        body = message.body
        if type(body) is UploadList:
            right = self.proper_list(body)
        elif type(body) is ViewChange:
            right = self.proper_change(body)
        else:
            right = type(body) is PrePrepare and self.proper_proposal(body)
        if right:
            message.sound = self
        return right

    # Certificates

    def certificate(self, votes: Sequence[Message], record: Record) -> Certificate:
        """A quorum of votes, of one kind, view and value, made into a proof."""
        first = votes[0].body
        assert isinstance(first, Prepare | Commit)
        chosen = sorted([(vote.server, vote.signature) for vote in votes])[: self.roster.quorum]
        return Certificate(first.kind, first.view, record, tuple(chosen))

    def certifies(self, certificate: Certificate, phase: Kind) -> bool:
        """Whether a quorum of distinct servers signed this very vote."""
        if certificate.phase != phase:
            return False
        if certificate not in self._certified:
            if not self.enough(
                [server for server, _ in certificate.signatures]
            ) or not self._votes_hold(certificate):
                return False
            if len(self._certified) >= _REMEMBERED:
                self._certified.clear()
            self._certified.add(certificate)
        return True

    def _votes_hold(self, certificate: Certificate) -> bool:
        vote = Prepare if certificate.phase == PREPARE else Commit
        record = certificate.record
        value = record.value(self.run)
        return all(
            self._signed_by(
                server,
                encode(self.run, vote(record.round, certificate.view, value, server)),
                signature,
            )
            for server, signature in certificate.signatures
        )

    def enough(self, servers: Iterable[int]) -> bool:
        """Whether these are a quorum, each counted once."""
        return len(set(servers)) >= self.roster.quorum

    # Lists and what follows from them

    def proper_list(self, body: UploadList) -> bool:
        """In order, of registered clients and of servers that move something, at most two entries each, and of no fewer
        clients than a round needs."""
        clients = [client for client, _ in body.entries]
        ordered = all(map(lt, body.entries, body.entries[1:]))
        thrice = any(map(eq, clients, clients[2:]))
        known = max(clients, default=0) < self.roster.mover(self.roster.n)
        return ordered and not thrice and known and self.registered(clients) >= self.roster.minimum

    def registered(self, clients: Iterable[int]) -> int:
        """How many different ones of these are registered; the others are servers, and count for no minimum."""
        return len({client for client in clients if client < len(self.roster.clients)})

    def union(self, lists: Iterable[Message]) -> tuple[Entries, Entries]:
        """The set of a free choice: the entries of clients with one upload among the lists; and those of the others."""
        listed = {message.body.entries for message in lists if isinstance(message.body, UploadList)}
        # they mostly list the same
        if len(listed) == 1:
            entries = listed.pop()
        else:
            entries = tuple(sorted(set().union(*listed)))
        if len({client for client, _ in entries}) == len(entries):
            return entries, ()
        twice = {a[0] for a, b in pairwise(entries) if a[0] == b[0]}
        return tuple([e for e in entries if e[0] not in twice]), tuple(
            [e for e in entries if e[0] in twice]
        )

    def record(self, round_: int, previous: bytes, entries: Entries, outcome: Outcome) -> Record:
        return Record(
            round_, previous, *map(part_digest, PARTS, (write_entries(entries), *outcome))
        )

    # Views

    def proper_change(self, body: ViewChange) -> bool:
        """With nothing prepared but by a quorum in an earlier view of this round, after a certified last round."""
        prepared = body.prepared
        last = body.last
        if body.view == 0 or (last is None) != (body.round == 1):
            return False
        if last is not None and not (
            last.record.round == body.round - 1 and self.certifies(last, COMMIT)
        ):
            return False
        return prepared is None or (
            prepared.record.round == body.round
            and prepared.view < body.view
            and self.certifies(prepared, PREPARE)
        )

    def bound(self, changes: Iterable[Message]) -> Certificate | None:
        """What a new view must carry on with: the certificate prepared in the highest view, if any."""
        bodies = [change.body for change in changes]
        prepared = [
            body.prepared
            for body in bodies
            if type(body) is ViewChange and body.prepared is not None
        ]
        return max(prepared, key=lambda p: p.view, default=None)

    def proper_proposal(self, body: PrePrepare) -> bool:
        """From the view's leader, with what justifies it. That the record follows from the lists takes the bodies."""
        if (
            body.server != self.roster.leader(body.round, body.view)
            or body.record.round != body.round
        ):
            return False
        if not self.proper_changes(body):
            return False
        bound = self.bound(body.changes)
        if bound is not None:
            return body.record == bound.record and not body.lists
        return self.proper_lists(body)

    def proper_changes(self, body: PrePrepare) -> bool:
        """None in view 0; else a quorum of them, distinct, for this very view."""
        if body.view == 0:
            return not body.changes
        servers = {m.server for m in body.changes}
        return (
            len(servers) == len(body.changes)
            and self.enough(servers)
            and all(
                isinstance(m.body, ViewChange)
                and (m.body.round, m.view) == (body.round, body.view)
                and self.authentic(m)
                and self.proper(m)
                for m in body.changes
            )
        )

    def proper_lists(self, body: PrePrepare) -> bool:
        """n − f of them, of distinct servers, for this round."""
        servers = {m.server for m in body.lists if isinstance(m.body, UploadList)}
        return len(servers) == len(body.lists) == self.roster.n - self.roster.f and all(
            isinstance(m.body, UploadList)
            and m.body.round == body.round
            and self.authentic(m)
            and self.proper(m)
            for m in body.lists
        )

    # Evidence

    def conflict(self, a: AnyMessage, b: AnyMessage) -> bool:
        """Whether no honest party signs both: two uploads or lists of a round, two votes or proposals of a view, or a
        receipt and a list without it."""
        party = author(a)
        if party is None or party != author(b) or a.round != b.round:
            return False
        if isinstance(a, Receipt) and isinstance(b, UploadList):
            return (a.client, a.digest) not in b.entries
        if a.kind != b.kind or isinstance(a, Receipt) or a == b:
            return False
        return isinstance(a, Upload | UploadList) or getattr(a, "view", None) == getattr(
            b, "view", None
        )

    def proves(self, evidence: Evidence) -> bool:
        """Whether both messages are authentic, of the evidence's round, and in conflict."""
        first = evidence.first
        second = evidence.second
        return (
            evidence.round == first.body.round
            and self.conflict(first.body, second.body)
            and self.authentic(first)
            and self.authentic(second)
        )
