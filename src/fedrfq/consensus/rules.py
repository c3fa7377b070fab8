"""What can be judged with the public keys alone.

Replicas, clients and auditors all judge by these rules. They need no state and no uploads;
whether a record follows from its uploads is for the replica to compute.
"""

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
    ChangeProposal,
    Commit,
    Entries,
    Evidence,
    Inputs,
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
)
from fedrfq.consensus.roster import Roster, Signer

_MAX_REMEMBERED = 1024  # certificates; each is shown again and again, but only for a round or two


class Rules:
    """The rules of one run."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.run = roster.run
        self.protocol = roster.protocol
        self._keys = roster.keys
        self._verify = roster.scheme.verify
        self._verified: set[Certificate] = set()

    def signed(self, body: AnyMessage, signer: Signer) -> Message:
        """Return a message of this run that the signer signs when its signature is first needed."""
        return Message(self.run, body, None, signer, self.protocol)

    def unsigned(self, body: AnyMessage) -> Message:
        """Return a message of this run of a kind that needs no signature."""
        return Message(self.run, body, protocol=self.protocol)

    def authentic(self, message: Message) -> bool:
        """Return whether the party that a message names as its author signed it for this run."""
        # Verifying is the most expensive thing a replica does, so a success is remembered.
        if message.verified_by is self:
            return True
        party = message.author
        if party is None or not self.of_run(message):
            return False
        key = self._keys.get(party)
        if key is None or not self._verify(key, message.raw, message.signature):
            return False
        message.verified_by = self
        return True

    def forged(self, messages: Iterable[Message]) -> list[Message]:
        """Return those of these messages that are not authentic."""
        return [message for message in messages if not self.authentic(message)]

    def of_run(self, message: Message) -> bool:
        """Return whether a message is of this run, and of the version that it speaks."""
        return message.run == self.run and message.protocol == self.protocol

    def _signed_by(self, party: int, raw: bytes, signature: bytes) -> bool:
        key = self._keys.get(party)
        return key is not None and self._verify(key, raw, signature)

    def proper(self, message: Message) -> bool:
        """Return whether an upload list, a view change or a proposal is well-formed and justified.

        Its signature is checked by `authentic`.
        """
        # As with signatures, a success is remembered.
        if message.checked_by is self:
            return True
        body = message.body
        if type(body) is UploadList:
            is_proper = self.proper_list(body)
        elif type(body) is ViewChange:
            is_proper = self.proper_change(body)
        else:
            is_proper = type(body) is PrePrepare and self.proper_proposal(body)
        if is_proper:
            message.checked_by = self
        return is_proper

    # Certificates

    def certificate(self, votes: Sequence[Message], record: Record) -> Certificate:
        """Return the certificate that a quorum of votes of one kind, view and value makes up."""
        first = votes[0].body
        assert isinstance(first, Prepare | Commit)
        # Exactly a quorum, the lowest servers first, so that certificates are no longer than
        # needed.
        signatures = sorted([(vote.server, vote.signature) for vote in votes])
        return Certificate(first.kind, first.view, record, tuple(signatures[: self.roster.quorum]))

    def certifies(self, certificate: Certificate, phase: Kind) -> bool:
        """Return whether a quorum of distinct servers signed votes of this phase for the record."""
        if certificate.phase != phase:
            return False
        # Equal certificates have equal signatures, so the cache cannot be poisoned. What fails is
        # not remembered: anybody can make up failing certificates without end.
        if certificate in self._verified:
            return True
        servers = [server for server, _ in certificate.signatures]
        if not self.enough(servers) or not self._votes_hold(certificate):
            return False
        if len(self._verified) >= _MAX_REMEMBERED:
            self._verified.clear()
        self._verified.add(certificate)
        return True

    def _votes_hold(self, certificate: Certificate) -> bool:
        """Return whether every signature is one of the vote that the certificate stands for."""
        vote = Prepare if certificate.phase == PREPARE else Commit
        record = certificate.record
        value = record.value(self.run)
        for server, signature in certificate.signatures:
            body = vote(record.round, certificate.view, value, server)
            raw = encode(self.run, body, self.protocol)
            if not self._signed_by(server, raw, signature):
                return False
        return True

    def enough(self, servers: Iterable[int]) -> bool:
        """Return whether these servers are a quorum, each counted once."""
        return len(set(servers)) >= self.roster.quorum

    # Upload lists and what follows from them

    def proper_list(self, body: UploadList) -> bool:
        """Return whether a server may close a round with this list.

        Its uploads come from no fewer clients than a round requires, and its proposals, of which
        there need not be any, from servers.
        """
        clients = {client for client, _ in body.entries}
        return (
            _are_proper(body.entries, len(self.roster.clients))
            and _are_proper(body.proposals, self.roster.n)
            and len(clients) >= self.roster.minimum
        )

    def union(self, lists: Iterable[Message]) -> tuple[Inputs, Inputs]:
        """Return the set of a free choice: what the lists have of all parties with one entry.

        The second value are the entries of the parties with several, of which none counts.
        """
        bodies = [message.body for message in lists if isinstance(message.body, UploadList)]
        uploads, repeated_uploads = _merged({body.entries for body in bodies})
        proposals, repeated_proposals = _merged({body.proposals for body in bodies})
        return Inputs(uploads, proposals), Inputs(repeated_uploads, repeated_proposals)

    def successor(self, proposals: Iterable[ChangeProposal]) -> bytes:
        """Return the federation that a quorum of servers proposes; empty if there is none.

        No server has two proposals among those that count, so at most one text has a quorum.
        """
        servers_by_text: dict[bytes, set[int]] = {}
        for proposal in proposals:
            servers_by_text.setdefault(proposal.content, set()).add(proposal.server)
        for text, servers in servers_by_text.items():
            if self.enough(servers):
                return text
        return b""

    def record(self, round_: int, previous: bytes, inputs: Inputs, outcome: Outcome) -> Record:
        """Return the record of a round with this set and this outcome."""
        contents = (inputs.write(), *outcome)
        return Record(round_, previous, *map(part_digest, PARTS, contents))

    # Views (section 4.4 of the paper)

    def proper_change(self, body: ViewChange) -> bool:
        """Return whether a view change proves what it claims.

        The previous round is certified, and what its sender has prepared was prepared by a quorum
        in an earlier view of this round.
        """
        prepared = body.prepared
        last = body.last
        # Only round 1 has no round before it, and no view change leads to view 0.
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
        """Return the prepared certificate of the highest view, which binds a new view, if any.

        A value that some server may have decided was prepared by a quorum, so among any quorum of
        view changes an honest one shows its certificate or a later one.
        """
        bodies = [change.body for change in changes]
        prepared = [
            body.prepared
            for body in bodies
            if type(body) is ViewChange and body.prepared is not None
        ]
        return max(prepared, key=lambda certificate: certificate.view, default=None)

    def proper_proposal(self, body: PrePrepare) -> bool:
        """Return whether a proposal comes from its view's leader and carries its justification.

        Whether its record follows from its lists takes the uploads, and is checked by the replica.
        """
        if body.server != self.roster.leader(body.round, body.view):
            return False
        if body.record.round != body.round or not self.proper_changes(body):
            return False
        # What is bound needs no lists: they have justified it in the view in which it was prepared.
        bound = self.bound(body.changes)
        if bound is not None:
            return body.record == bound.record and not body.lists
        return self.proper_lists(body)

    def proper_changes(self, body: PrePrepare) -> bool:
        """Return whether a proposal carries a quorum of view changes, or none in view 0."""
        if body.view == 0:
            return not body.changes
        servers = {message.server for message in body.changes}
        return (
            # Without this, one server's view change, repeated, could pass for a quorum.
            len(servers) == len(body.changes)
            and self.enough(servers)
            and all(
                isinstance(message.body, ViewChange)
                and (message.body.round, message.view) == (body.round, body.view)
                and self.authentic(message)
                and self.proper(message)
                for message in body.changes
            )
        )

    def proper_lists(self, body: PrePrepare) -> bool:
        """Return whether a proposal carries n − f upload lists of distinct servers for its round.

        At most f lists are missing, so no upload that f + 1 honest servers list can be left out.
        """
        servers = {message.server for message in body.lists if isinstance(message.body, UploadList)}
        needed = self.roster.n - self.roster.f
        return len(servers) == len(body.lists) == needed and all(
            isinstance(message.body, UploadList)
            and message.body.round == body.round
            and self.authentic(message)
            and self.proper(message)
            for message in body.lists
        )

    # Evidence

    def conflict(self, a: AnyMessage, b: AnyMessage) -> bool:
        """Return whether no honest party signs both of these messages.

        That is so for two uploads, change proposals or lists of a round, for two votes or proposals
        of a view, and for a receipt and a list without the upload that it promised.
        """
        party = author(a)
        if party is None or party != author(b) or a.round != b.round:
            return False
        if isinstance(a, Receipt) and isinstance(b, UploadList):
            return (a.client, a.digest) not in b.entries
        # A server gives each client a receipt, so two receipts never conflict.
        if a.kind != b.kind or isinstance(a, Receipt) or a == b:
            return False
        if isinstance(a, Upload | ChangeProposal | UploadList):
            return True
        return getattr(a, "view", None) == getattr(b, "view", None)

    def proves(self, evidence: Evidence) -> bool:
        """Return whether evidence holds two authentic messages of its round that conflict."""
        first = evidence.first
        second = evidence.second
        # The signatures last, as they take longest.
        return (
            evidence.round == first.body.round
            and self.conflict(first.body, second.body)
            and self.authentic(first)
            and self.authentic(second)
        )


def _are_proper(entries: Entries, parties: int) -> bool:
    """Return whether entries are in ascending order, at most two for each of so many parties."""
    numbers = [number for number, _ in entries]
    ordered = all(map(lt, entries, entries[1:]))
    # In an ordered list, three entries of one party make neighbours at distance two.
    thrice = any(map(eq, numbers, numbers[2:]))
    return ordered and not thrice and max(numbers, default=-1) < parties


def _merged(listed: set[Entries]) -> tuple[Entries, Entries]:
    """Return the entries of the parties that have one, and of those that have several."""
    # Servers mostly list the same uploads, and then there is nothing to merge.
    if len(listed) == 1:
        entries = next(iter(listed))
    else:
        entries = tuple(sorted(set().union(*listed)))
    if len({number for number, _ in entries}) == len(entries):
        return entries, ()
    repeated = {a[0] for a, b in pairwise(entries) if a[0] == b[0]}
    single = tuple([entry for entry in entries if entry[0] not in repeated])
    double = tuple([entry for entry in entries if entry[0] in repeated])
    return single, double
