"""What an all-seeing observer knows of a run: all uploads, lists and proposals, and who is honest.

It judges by the keys and by the definitions alone, independently of the rules that replicas use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedrfq.consensus.messages import (
    Certificate,
    ChangeProposal,
    Commit,
    Entries,
    Entry,
    Inputs,
    Kind,
    Message,
    PartKind,
    Prepare,
    PrePrepare,
    Upload,
    UploadList,
    encode,
    part_digest,
)
from fedrfq.consensus.roster import Roster


def quorum(n: int) -> int:
    """Return the smallest size of which any two groups of n servers share an honest server.

    They share more than f servers, so at least one of those is honest.
    """
    f = (n - 1) // 3
    return next(q for q in range(1, n + 1) if 2 * q - n > f)


def union(lists: Sequence[UploadList]) -> Inputs:
    """Return the set that follows from lists: what they have of parties with exactly one entry."""
    uploads = {entry for body in lists for entry in body.entries}
    proposals = {entry for body in lists for entry in body.proposals}
    return Inputs(_without_repeated(uploads), _without_repeated(proposals))


def _without_repeated(entries: set[Entry]) -> Entries:
    times = Counter(party for party, _ in entries)
    return tuple(sorted(entry for entry in entries if times[entry[0]] == 1))


class OmniscientView:
    """Collects every upload, list and proposal that anybody sends, and checks signatures."""

    def __init__(self, roster: Roster, honest: Iterable[int]) -> None:
        self.roster = roster
        self.honest = frozenset(honest)
        self.quorum = quorum(roster.n)
        self.lists_needed = roster.n - (roster.n - 1) // 3
        # Uploads and change proposals that are properly signed: by digest, and as digests by round
        # and author.
        self.inputs: dict[bytes, Message] = {}
        self.signed: dict[tuple[int, int], set[bytes]] = {}
        self.lists: dict[int, dict[int, UploadList]] = {}  # of honest servers, by round
        self.proposals: dict[tuple[int, bytes], list[PrePrepare]] = {}  # by round and value
        self.proposed: set[tuple[int, int, bytes, int]] = set()  # round, view, value, server
        self._noted: set[bytes] = set()

    def note(self, party: int, message: Message) -> None:
        """Remember what a message that a party sends says, if it is properly signed."""
        body = message.body
        if message.raw in self._noted or message.run != self.roster.run:
            return
        if type(body) is Upload or type(body) is ChangeProposal:
            self._note_input(party, message)
        elif type(body) is PrePrepare and self.is_authentic(message):
            self._noted.add(message.raw)
            value = body.record.value(self.roster.run)
            self.proposals.setdefault((body.round, value), []).append(body)
            self.proposed.add((body.round, body.view, value, body.server))
        elif type(body) is UploadList and party == body.server and party in self.honest:
            self._noted.add(message.raw)
            self.lists.setdefault(body.round, {})[party] = body

    def _note_input(self, party: int, message: Message) -> None:
        # An honest party's message counts only if the party sends it itself: where keys are weak,
        # a valid signature proves nothing.
        owner = message.author
        assert owner is not None
        if (party == owner or owner not in self.honest) and self.is_authentic(message):
            self._noted.add(message.raw)
            digest = message.digest
            self.inputs[digest] = message
            self.signed.setdefault((message.body.round, owner), set()).add(digest)

    def is_authentic(self, message: Message) -> bool:
        """Return whether a message is of this run and signed by its author."""
        party = message.author
        return (
            party is not None
            and message.run == self.roster.run
            and self._is_signed_by(party, message.raw, message.signature)
        )

    def _is_signed_by(self, party: int, raw: bytes, signature: bytes) -> bool:
        key = self.roster.keys.get(party)
        return key is not None and self.roster.scheme.verify(key, raw, signature)

    def certifies(self, certificate: Certificate, phase: Kind) -> bool:
        """Return whether a certificate holds votes of this phase by a quorum, and nothing else."""
        record = certificate.record
        run = self.roster.run
        value = record.value(run)
        vote = Prepare if phase == Kind.PREPARE else Commit
        signers = set()
        for server, signature in certificate.signatures:
            body = vote(record.round, certificate.view, value, server)
            voted = encode(run, body, self.roster.protocol)
            if self._is_signed_by(server, voted, signature):
                signers.add(server)
        distinct_and_valid = len(signers) == len(certificate.signatures)
        return certificate.phase == phase and distinct_and_valid and len(signers) >= self.quorum

    def justified_set(self, round_: int, value: bytes) -> Inputs | None:
        """Return the set of a value, if some proposal of the value follows from proper lists."""
        for proposal in self.proposals.get((round_, value), []):
            inputs = self._set_of(proposal)
            if inputs is None:
                continue
            if part_digest(PartKind.SET, inputs.write()) == proposal.record.set_:
                return inputs
        return None

    def _set_of(self, proposal: PrePrepare) -> Inputs | None:
        """Return the set that follows from a proposal's lists, if they are enough and distinct."""
        lists = [
            message.body
            for message in proposal.lists
            if isinstance(message.body, UploadList)
            and message.body.round == proposal.round
            and self.is_authentic(message)
        ]
        servers = {body.server for body in lists}
        if len(lists) == len(servers) == self.lists_needed:
            return union(lists)
        return None
