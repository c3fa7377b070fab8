"""The ring of faulty parties: their keys, all they have heard, and what they can make of it.

All members of the ring vote for what one of them proposes: a faulty leader that does not vote for
its own proposal tests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeVar

from fedrfq.consensus.events import Application, Decided, Event, Outcome, Received
from fedrfq.consensus.messages import (
    PARTS,
    AnyMessage,
    Cert,
    Certificate,
    ChangeProposal,
    Commit,
    Entry,
    Fetch,
    Inputs,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Record,
    Upload,
    UploadList,
    ViewChange,
    part_digest,
)
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.party import Action, Relay

T = TypeVar("T")
_MAX_PAST = 300  # messages kept to be sent again
_COMMIT_SHARE = 0.8  # of those that get a proposal also get the ring's commits for it


class Choice(NamedTuple):
    """A record that could be proposed, and the upload lists that are to justify it."""

    record: Record
    lists: tuple[Message, ...]

    def in_place_of(self, proposal: PrePrepare) -> PrePrepare:
        """Return the proposal with this choice instead of its own."""
        return replace(proposal, record=self.record, lists=self.lists)


class _Decision(NamedTuple):
    """A decided round; round 0, before the first, has no certificate."""

    value: bytes
    outcome: Outcome
    certificate: Certificate | None


class Ring:
    """What the faulty parties know together and can sign together.

    `signers` holds their keys: servers by number, client k by ~k. `mint_content` makes up the
    content of an upload that nobody trained for; without it, content heard from others is reused.
    `archive` holds messages that the same keys signed in another run.
    """

    def __init__(
        self,
        rules: Rules,
        application: Application,
        signers: dict[int, Signer],
        rng: Random,
        *,
        mint_content: Callable[[], bytes] | None = None,
        archive: Sequence[Message] = (),
    ) -> None:
        self.rules = rules
        self.roster = rules.roster
        self.application = application
        self.rng = rng
        self._mint_content = mint_content
        self.signers = signers
        self.servers = sorted(party for party in signers if party >= 0)
        self.clients = sorted(~party for party in signers if party < 0)
        self.honest = [server for server in range(self.roster.n) if server not in signers]
        self.round = 1
        self.chain = {0: _Decision(rules.run, application.start(), None)}
        self.uploads: dict[int, dict[bytes, Message]] = {}  # by round and digest
        self.proposals: dict[int, dict[bytes, Message]] = {}  # the same of change proposals
        self.lists: dict[int, dict[int, Message]] = {}  # by round and server
        self.changes: dict[tuple[int, int], dict[int, Message]] = {}  # by round and view; server
        # by kind, round, view and value; server
        self.votes: dict[tuple[Kind, int, int, bytes], dict[int, Message]] = {}
        self.records: dict[int, dict[bytes, Record]] = {}  # by round and value
        self.parts: dict[bytes, Message] = {}  # by digest
        self.past: list[Message] = []
        self.archive = archive
        self.weak: dict[int, Signer] = {}  # clients for whom everybody can sign

    # What they hear

    def learn(self, event: Event) -> None:
        """Remember the message of an event, if it has one."""
        if type(event) is Received:
            self.hear(event.message)

    def hear(self, message: Message) -> None:
        """Remember a message, and sort it in by what it says."""
        body = message.body
        if type(body) is Upload:
            # Inadmissible uploads are of no use to the ring: no set with one is ever accepted.
            if self.application.refuses(body) is None:
                self.uploads.setdefault(body.round, {})[message.digest] = message
        elif type(body) is ChangeProposal:
            if self.application.refuses_successor(body.content) is None:
                self.proposals.setdefault(body.round, {})[message.digest] = message
        elif type(body) is UploadList:
            self.lists.setdefault(body.round, {})[body.server] = message
        elif type(body) is Prepare or type(body) is Commit:
            place = (body.kind, body.round, body.view, body.value)
            self.votes.setdefault(place, {})[body.server] = message
        elif type(body) is ViewChange:
            self.changes.setdefault((body.round, body.view), {})[body.server] = message
        elif type(body) is PrePrepare:
            self.records.setdefault(body.round, {})[body.record.value(self.rules.run)] = body.record
        # Once full, a new message takes a random one's place, so that some old ones stay.
        if len(self.past) < _MAX_PAST:
            self.past.append(message)
        elif type(body) is not Fetch:
            self.past[int(self.rng.random() * _MAX_PAST)] = message

    def decided(self, decided: Decided) -> None:
        """Remember a decision of the honest replica inside one of the faulty servers."""
        record = decided.certificate.record
        if decided.outcome is not None:
            value = record.value(self.rules.run)
            self.chain[record.round] = _Decision(value, decided.outcome, decided.certificate)
            self.round = max(self.round, record.round + 1)

    def answer(self, request: AnyMessage) -> list[Message]:
        """Return what the ring made up, if that is what a message asks for."""
        if type(request) is not Fetch:
            return []
        digest = request.digest
        uploads = self.uploads.get(request.round, {})
        proposals = self.proposals.get(request.round, {})
        # What the ring made up comes first.
        known = self.parts.get(digest) or uploads.get(digest) or proposals.get(digest)
        if known is None:
            return []
        return [known]

    # What they make

    def sign(self, party: int, body: AnyMessage) -> Message:
        """Sign with the key of one of the faulty parties, in whatever name the body is."""
        return self.rules.signed(body, self.signers[party])

    def some(self, things: Sequence[T], share: float = 0.5) -> list[T]:
        """Return each thing with this probability."""
        return [thing for thing in things if self.rng.random() < share]

    def content(self, round_: int) -> bytes:
        """Return content for an upload that nobody trained for: made up, or another client's."""
        if self._mint_content is not None:
            return self._mint_content()
        bodies = [message.body for message in self.uploads.get(round_, {}).values()]
        known = [body.content for body in bodies if isinstance(body, Upload)]
        if not known:
            return b""
        return self.rng.choice(known)

    def successor(self, round_: int) -> bytes:
        """Return a federation that somebody has proposed in this round; empty if nobody has."""
        bodies = [message.body for message in self.proposals.get(round_, {}).values()]
        known = [body.content for body in bodies if isinstance(body, ChangeProposal)]
        if not known:
            return b""
        return self.rng.choice(known)

    def mint_upload(self, round_: int) -> Message | None:
        """Sign one more upload of a faulty client, if there is such a client."""
        if not self.clients:
            return None
        client = self.rng.choice(self.clients)
        message = self.sign(~client, Upload(round_, client, self.content(round_)))
        self.uploads.setdefault(round_, {})[message.digest] = message
        return message

    def mint_list(self, server: int, round_: int) -> Message | None:
        """Sign a list of some known uploads, perhaps with one that nobody else has."""
        if self.rng.random() < 0.7:
            self.mint_upload(round_)
        by_client: dict[int, bytes] = {}
        for digest, message in self.uploads.get(round_, {}).items():
            assert isinstance(message.body, Upload)
            by_client[message.body.client] = digest  # the latest, if a client sent several
        by_server: dict[int, bytes] = {}
        for digest, message in self.proposals.get(round_, {}).items():
            by_server[message.server] = digest
        return self._list_some(server, round_, sorted(by_client.items()), sorted(by_server.items()))

    def _list_some(
        self, server: int, round_: int, uploads: Sequence[Entry], proposals: Sequence[Entry]
    ) -> Message | None:
        """Sign a list of some entries, of no fewer clients than a list needs."""
        if len(uploads) < self.roster.minimum:
            return None
        dropped = min(int(self.rng.random() * 3), len(uploads) - self.roster.minimum)
        kept = tuple(sorted(self.rng.sample(uploads, len(uploads) - dropped)))
        return self.sign(server, UploadList(round_, server, kept, tuple(self.some(proposals, 0.7))))

    def draw_choice(self, round_: int) -> Choice | None:
        """Draw one of the records that could be proposed, with the lists that justify it."""
        pool = dict(self.lists.get(round_, {}))
        for server in self.servers:
            minted = self.mint_list(server, round_)
            if minted is not None:
                pool[server] = minted
        needed = self.roster.n - self.roster.f
        if len(pool) < needed:
            return None
        if self.rng.random() < 0.3:
            chosen = self.rng.sample(sorted(pool), needed)
        else:
            chosen = self._prefer_faulty(pool, needed)
        return self.choice_from(round_, tuple(pool[server] for server in sorted(chosen)))

    def other_choice(self, proposal: PrePrepare) -> Choice | None:
        """Draw another choice for a proposal, if its leader is free to choose.

        A proposal without lists is not: its view is bound to a value that may have been decided.
        """
        if not proposal.lists:
            return None
        return self.draw_choice(proposal.round)

    def _prefer_faulty(self, pool: dict[int, Message], number: int) -> list[int]:
        others = [server for server in pool if server not in self.signers]
        self.rng.shuffle(others)
        faulty = [server for server in pool if server in self.signers]
        return (faulty + others)[:number]

    def choice_from(self, round_: int, lists: tuple[Message, ...]) -> Choice | None:
        """Return the choice that follows from lists, if all uploads they name are known."""
        record = self.compute_record(round_, self.rules.union(lists)[0])
        if record is None:
            return None
        return Choice(record, lists)

    def compute_record(self, round_: int, inputs: Inputs) -> Record | None:
        """Compute the record of a set, and keep its parts for those who ask for them."""
        uploads = self.uploads.get(round_, {})
        proposals = self.proposals.get(round_, {})
        before = self.chain.get(round_ - 1)
        if before is None or any(digest not in uploads for _, digest in inputs.uploads):
            return None
        if any(digest not in proposals for _, digest in inputs.proposals):
            return None
        uploaded = [uploads[digest].body for _, digest in inputs.uploads]
        bodies = [body for body in uploaded if isinstance(body, Upload)]
        if any(self.application.refuses(body) is not None for body in bodies):
            return None
        proposed = [proposals[digest].body for _, digest in inputs.proposals]
        successor = self.rules.successor(
            body for body in proposed if isinstance(body, ChangeProposal)
        )
        outcome = self.application.decide(round_, before.outcome, bodies)
        outcome = outcome._replace(successor=successor)
        for what, content in zip(PARTS, (inputs.write(), *outcome), strict=True):
            self.keep_part(round_, what, content)
        record = self.rules.record(round_, before.value, inputs, outcome)
        self.records.setdefault(round_, {})[record.value(self.rules.run)] = record
        return record

    def keep_part(self, round_: int, what: PartKind, content: bytes) -> bytes:
        """Keep a part of a record for those who ask for it, and return its digest."""
        digest = part_digest(what, content)
        self.parts[digest] = self.rules.unsigned(Part(round_, what, content))
        return digest

    def vote(self, kind: Kind, server: int, round_: int, view: int, value: bytes) -> Message:
        """Sign a PREPARE or COMMIT of a faulty server, and remember it."""
        body: Prepare | Commit = Commit(round_, view, value, server)
        if kind == Kind.PREPARE:
            body = Prepare(round_, view, value, server)
        message = self.sign(server, body)
        self.votes.setdefault((kind, round_, view, value), {})[server] = message
        return message

    def vote_together(
        self, round_: int, view: int, record: Record, targets: Sequence[int]
    ) -> list[Action]:
        """Let all faulty servers vote for a record in both phases, towards these servers.

        Not every one of them gets the commits.
        """
        value = record.value(self.rules.run)
        actions: list[Action] = []
        for server in self.servers:
            prepare = self.vote(Kind.PREPARE, server, round_, view, value)
            commit = self.vote(Kind.COMMIT, server, round_, view, value)
            actions += [Relay(server, to, prepare) for to in targets]
            actions += [Relay(server, to, commit) for to in self.some(targets, _COMMIT_SHARE)]
        return actions

    def propose(self, proposal: PrePrepare, targets: Sequence[int]) -> list[Action]:
        """Send a proposal to these servers, and the ring's votes for it."""
        message = self.sign(proposal.server, proposal)
        sent: list[Action] = [Relay(proposal.server, to, message) for to in targets]
        return sent + self.vote_together(proposal.round, proposal.view, proposal.record, targets)

    def view_change(
        self, server: int, round_: int, view: int, prepared: Certificate | None = None
    ) -> Message | None:
        """Sign a view change that claims this certificate to be prepared, true or not."""
        before = self.chain.get(round_ - 1)
        if before is None or view < 1:
            return None
        return self.sign(server, ViewChange(round_, view, server, prepared, before.certificate))

    def certificate_message(self, round_: int) -> Message | None:
        """Return the message that hands out the certificate of a decided round."""
        decision = self.chain.get(round_)
        if decision is None or decision.certificate is None:
            return None
        return self.rules.unsigned(Cert(round_, decision.certificate))
