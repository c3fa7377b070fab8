"""What the faulty parties are together: their keys, all that any of them has heard, and what can be made of it.

They vote for whatever one of them proposes: an evil leader that does not vote for its own proposal tests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from fedrfq.consensus.events import Application, Decided, Event, Outcome, Received
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Commit,
    Entry,
    Fetch,
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
    write_entries,
)
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.party import Relay

T = TypeVar("T")
_MOST_PAST = 300  # messages kept to be sent again


class Choice(NamedTuple):
    """A record that follows from these lists."""

    record: Record
    lists: tuple[Message, ...]


class Ring:
    """`signers`: of the faulty, servers by number and client k by ~k. `mint` makes up the content of one more upload."""

    def __init__(
        self,
        rules: Rules,
        application: Application,
        signers: dict[int, Signer],
        rng: Random,
        mint: Callable[[], bytes] | None = None,
        archive: Sequence[Message] = (),
    ) -> None:
        self.rules = rules
        self.roster = rules.roster
        self.application = application
        self.rng = rng
        self._mint = mint
        self.signers = signers
        self.servers = sorted(party for party in signers if party >= 0)
        self.clients = sorted(~party for party in signers if party < 0)
        self.honest = [server for server in range(self.roster.n) if server not in signers]
        self.round = 1
        self.chain: dict[int, tuple[bytes, Outcome, Certificate | None]] = {
            0: (rules.run, application.start(), None)
        }
        self.uploads: dict[int, dict[bytes, Message]] = {}
        self.lists: dict[int, dict[int, Message]] = {}
        self.changes: dict[tuple[int, int], dict[int, Message]] = {}
        self.votes: dict[tuple[Kind, int, int, bytes], dict[int, Message]] = {}
        self.records: dict[int, dict[bytes, Record]] = {}
        self.parts: dict[bytes, Message] = {}
        self.past: list[Message] = []
        self.archive = archive  # what the same keys signed in another run
        self.weak: dict[int, Signer] = {}  # clients for whom everybody can sign

    # What they hear

    def learn(self, event: Event) -> None:
        if type(event) is Received:
            self.hear(event.message)

    def hear(self, message: Message) -> None:
        body = message.body
        if type(body) is Upload:
            if self.application.refuses(body) is None:
                self.uploads.setdefault(body.round, {})[message.digest] = message
        elif type(body) is UploadList:
            self.lists.setdefault(body.round, {})[body.server] = message
        elif type(body) is Prepare or type(body) is Commit:
            self.votes.setdefault((body.kind, body.round, body.view, body.value), {})[
                body.server
            ] = message
        elif type(body) is ViewChange:
            self.changes.setdefault((body.round, body.view), {})[body.server] = message
        elif type(body) is PrePrepare:
            self.records.setdefault(body.round, {})[body.record.value(self.rules.run)] = body.record
        if len(self.past) < _MOST_PAST:
            self.past.append(message)
        elif type(body) is not Fetch:
            self.past[int(self.rng.random() * _MOST_PAST)] = message

    def decided(self, decided: Decided) -> None:
        record = decided.certificate.record
        if decided.outcome is not None:
            self.chain[record.round] = (
                record.value(self.rules.run),
                decided.outcome,
                decided.certificate,
            )
            self.round = max(self.round, record.round + 1)

    def answer(self, event: Event) -> list[Message]:
        """To a request for something made up."""
        if isinstance(event, Received):
            body = event.message.body
        else:
            body = None
        if type(body) is not Fetch:
            return []
        found = self.parts.get(body.digest) or self.uploads.get(body.round, {}).get(body.digest)
        if found is not None:
            return [found]
        return []

    # What they make

    def sign(
        self, party: int, body: Upload | UploadList | PrePrepare | Prepare | Commit | ViewChange
    ) -> Message:
        return self.rules.signed(body, self.signers[party])

    def some(self, things: Sequence[T], share: float = 0.5) -> list[T]:
        return [thing for thing in things if self.rng.random() < share]

    def content(self, round_: int) -> bytes:
        """For an upload that nobody trained for: made up, or another's."""
        if self._mint is not None:
            return self._mint()
        known = [
            body.content
            for m in self.uploads.get(round_, {}).values()
            if isinstance(body := m.body, Upload)
        ]
        if known:
            return self.rng.choice(known)
        return b""

    def mint(self, round_: int) -> Message | None:
        """One more upload of a faulty client."""
        if not self.clients:
            return None
        client = self.rng.choice(self.clients)
        message = self.sign(~client, Upload(round_, client, self.content(round_)))
        self.uploads.setdefault(round_, {})[message.digest] = message
        return message

    def own_list(self, server: int, round_: int) -> Message | None:
        """A list as this server likes it: some of the uploads known, perhaps with one that nobody else has."""
        if self.rng.random() < 0.7:
            self.mint(round_)
        by_client: dict[int, bytes] = {}
        for digest, message in self.uploads.get(round_, {}).items():
            assert isinstance(message.body, Upload)
            by_client[message.body.client] = digest
        return self.list_of(server, round_, set(by_client.items()))

    def list_of(self, server: int, round_: int, entries: Iterable[Entry]) -> Message | None:
        """Some of these entries, of no fewer clients than a list needs."""
        entries = sorted(entries)
        registered = len(self.roster.clients)
        change_proposals = [e for e in entries if e[0] >= registered]
        ours = [e for e in entries if e[0] < registered]
        if len(ours) < self.roster.minimum:
            return None
        dropped = min(int(self.rng.random() * 3), len(ours) - self.roster.minimum)
        kept = self.rng.sample(ours, len(ours) - dropped) + self.some(change_proposals, 0.7)
        return self.sign(server, UploadList(round_, server, tuple(sorted(kept))))

    def choice(self, round_: int) -> Choice | None:
        """One of the sets that could be proposed, with the lists it follows from."""
        pool = dict(self.lists.get(round_, {}))
        for server in self.servers:
            minted = self.own_list(server, round_)
            if minted is not None:
                pool[server] = minted
        fewest = self.roster.n - self.roster.f
        if len(pool) < fewest:
            return None
        if self.rng.random() < 0.3:
            chosen = self.rng.sample(sorted(pool), fewest)
        else:
            chosen = self._with_own(pool, fewest)
        return self.follow(round_, tuple(pool[server] for server in sorted(chosen)))

    def _with_own(self, pool: dict[int, Message], number: int) -> list[int]:
        others = [server for server in pool if server not in self.signers]
        self.rng.shuffle(others)
        return ([server for server in pool if server in self.signers] + others)[:number]

    def follow(self, round_: int, lists: tuple[Message, ...]) -> Choice | None:
        """The record that follows from lists, if the bodies are known."""
        record = self.record(round_, self.rules.union(lists)[0])
        if record is None:
            return None
        return Choice(record, lists)

    def record(self, round_: int, entries: tuple[Entry, ...]) -> Record | None:
        """What the uploads of this set come to, its parts ready to be fetched."""
        known = self.uploads.get(round_, {})
        before = self.chain.get(round_ - 1)
        if before is None or any(digest not in known for _, digest in entries):
            return None
        bodies = [body for _, digest in entries if isinstance(body := known[digest].body, Upload)]
        if any(self.application.refuses(body) is not None for body in bodies):
            return None
        outcome = self.application.decide(round_, before[1], bodies)
        record = self.rules.record(round_, before[0], entries, outcome)
        parts = (write_entries(entries), outcome.globals_, outcome.verdicts, outcome.state)
        for what, content in zip(
            (PartKind.SET, PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE), parts, strict=True
        ):
            self.parts[part_digest(what, content)] = self.rules.unsigned(
                Part(round_, what, content)
            )
        self.records.setdefault(round_, {})[record.value(self.rules.run)] = record
        return record

    def vote(self, kind: Kind, server: int, round_: int, view: int, value: bytes) -> Message:
        message = self.sign(
            server, (Prepare if kind == Kind.PREPARE else Commit)(round_, view, value, server)
        )
        self.votes.setdefault((kind, round_, view, value), {})[server] = message
        return message

    def back(
        self, round_: int, view: int, record: Record, targets: Iterable[int], commits: float = 0.8
    ) -> list[Relay]:
        """All the faulty vote for it, in both phases, towards those who got it; not every one of them is told of commits."""
        value = record.value(self.rules.run)
        out = []
        told = list(targets)
        for server in self.servers:
            prepare = self.vote(Kind.PREPARE, server, round_, view, value)
            commit = self.vote(Kind.COMMIT, server, round_, view, value)
            out += [Relay(server, to, prepare) for to in told]
            out += [Relay(server, to, commit) for to in self.some(told, commits)]
        return out

    def propose(self, proposal: PrePrepare, targets: Sequence[int]) -> list[Relay]:
        """Send a proposal and the votes for it."""
        message = self.sign(proposal.server, proposal)
        sent = [Relay(proposal.server, to, message) for to in targets]
        return sent + self.back(proposal.round, proposal.view, proposal.record, targets)

    def change(
        self, server: int, round_: int, view: int, prepared: Certificate | None = None
    ) -> Message | None:
        """A view change with whatever is claimed to be prepared."""
        before = self.chain.get(round_ - 1)
        if before is None or view < 1:
            return None
        return self.sign(server, ViewChange(round_, view, server, prepared, before[2]))

    def certificate(self, round_: int) -> Message | None:
        known = self.chain.get(round_)
        if known is not None and known[2] is not None:
            return self.rules.unsigned(Cert(round_, known[2]))
        return None
