"""The stage of the explorer: one round of four servers, one faulty, with two values that are valid.

Client 0 has sent its upload to all servers, client 1 to the faulty one alone. So the lists of the
three honest servers lead to value a, and any three lists with the faulty server's to value b. All
lists and uploads have arrived everywhere when the search begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import NamedTuple

from fedrfq.consensus.events import Broadcast, Effect, Event, Expired, Received, Start, Timer
from fedrfq.consensus.messages import (
    SIGNATURE,
    AnyMessage,
    Cert,
    Certificate,
    Commit,
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
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster, Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.toy import Toy, content

SERVERS = 4
ROUND = 1
FORGED = bytes(SIGNATURE)  # what stands in place of a signature
_IDEAL = IdealSignatures()


class Value(NamedTuple):
    """A record, the lists it follows from, and the part message that hands out its set."""

    record: Record
    lists: tuple[Message, ...]
    set_: Message

    def digest(self, run: bytes) -> bytes:
        """Return what votes for this value name."""
        return self.record.value(run)


class Opened(NamedTuple):
    """An honest server as the search begins, and what it has done so far."""

    replica: Replica
    effects: list[Effect]


class Stage:
    """The parties and messages of a search.

    `rules` are those that the honest servers use, perhaps a mutant's; `truth` are the true rules.
    """

    def __init__(self, faulty: int, views: int, replica: type[Replica], rules: type[Rules]) -> None:
        servers = tuple(map(_IDEAL.key, range(SERVERS)))
        roster = Roster(_IDEAL, servers, (_IDEAL.key(~0), _IDEAL.key(~1)))
        self.faulty = faulty
        self.views = views
        self.replica = replica
        self.rules = rules(roster)
        self.truth = Rules(roster)
        self.honest = tuple(server for server in range(SERVERS) if server != faulty)
        self.uploads = tuple(
            self._sign(~client, Upload(ROUND, client, content(client + 1))) for client in range(2)
        )
        self.lists = {server: self._list(server) for server in range(SERVERS)}
        a = self._value(self.honest)
        b = self._value(sorted((faulty, *self.honest[:2])))
        self.values = (a, b)
        self.names = {a.digest(self.truth.run): "a", b.digest(self.truth.run): "b"}
        self.fixed_lies = tuple(self._fixed_lies())
        self._lies: dict[tuple[Message, ...], tuple[Message, ...]] = {}

    def _signer(self, party: int) -> Signer:
        return _IDEAL.signer(_IDEAL.key(party))

    def _sign(self, party: int, body: AnyMessage) -> Message:
        return self.rules.signed(body, self._signer(party))

    def _list(self, server: int) -> Message:
        """Sign a server's list: the faulty one lists both uploads, the others the first."""
        entries = tuple((client, upload.digest) for client, upload in enumerate(self.uploads))
        if server != self.faulty:
            entries = entries[:1]
        return self._sign(server, UploadList(ROUND, server, entries))

    def _value(self, servers: Iterable[int]) -> Value:
        lists = tuple(self.lists[server] for server in servers)
        inputs, _ = self.truth.union(lists)
        listed = [self.uploads[client].body for client, _ in inputs.uploads]
        bodies = [body for body in listed if isinstance(body, Upload)]
        outcome = Toy().decide(ROUND, Toy().start(), bodies)
        record = self.truth.record(ROUND, self.truth.run, inputs, outcome)
        set_ = self.truth.unsigned(Part(ROUND, PartKind.SET, inputs.write()))
        return Value(record, lists, set_)

    def describe(self, message: Message) -> str:
        """Return a message as a few words."""
        body = message.body
        words = [body.kind.name]
        if message.signature == FORGED:
            words.insert(0, "forged")
        if isinstance(body, Prepare | Commit):
            words.append(self._name(body.value))
        if isinstance(body, PrePrepare):
            words.append(self._name(body.record.value(self.truth.run)))
            if body.changes:
                words.append("after")
                words += [f"{m.server}{self._prepared_text(m.body)}" for m in body.changes]
        if isinstance(body, Cert):
            words.append(self._name(body.certificate.record.value(self.truth.run)))
        if isinstance(body, ViewChange):
            words.append(self._prepared_text(body))
        if hasattr(body, "view"):
            words.append(f"view {message.view} by {message.server}")
        return " ".join(word for word in words if word)

    def _name(self, value: bytes) -> str:
        return self.names.get(value, "?")

    def _prepared_text(self, body: AnyMessage) -> str:
        """Return what a view change says was prepared, or nothing."""
        if not isinstance(body, ViewChange) or body.prepared is None:
            return ""
        value = body.prepared.record.value(self.truth.run)
        return f"({self._name(value)} in {body.prepared.view})"

    # The honest servers

    def opened(self, server: int) -> Opened:
        """Return an honest server that has all uploads and lists, the faulty server's last."""
        replica = self.replica(self.rules, server, self._signer(server), Toy())
        others = [other for other in (*self.honest, self.faulty) if other != server]
        events: list[Event] = [Start(), Received(~0, self.uploads[0]), Expired(Timer.DEADLINE)]
        events += [Received(other, self.lists[other]) for other in others]
        events.append(Received(self.faulty, self.uploads[1]))
        effects = [effect for event in events for effect in replica.step(event)]
        said = [effect.message for effect in effects if isinstance(effect, Broadcast)]
        assert self.lists[server] in said, "an honest server lists what it holds"
        return Opened(replica, effects)

    # The faulty server

    def lies(self, said: Iterable[Message]) -> tuple[Message, ...]:
        """Return all that the faulty server can say that may matter, given what the honest said."""
        # Of what the honest say, it can build on their PREPAREs and view changes.
        useful = tuple(m for m in said if m.body.kind in (Kind.PREPARE, Kind.VIEWCHANGE))
        if useful not in self._lies:
            proven = tuple(self._proven_changes(useful))
            known = (*useful, *self.fixed_lies, *proven)
            changes = [m for m in known if m.body.kind == Kind.VIEWCHANGE]
            self._lies[useful] = (*self.fixed_lies, *proven, *self._new_views(changes))
        return self._lies[useful]

    def _fixed_lies(self) -> Iterator[Message]:
        """Yield what it can say from the start.

        These are votes and first proposals for either value, votes with bad signatures, and view
        changes that say that nothing is prepared, or something, without proof.
        """
        for value in self.values:
            yield value.set_
        for view, value in product(range(self.views + 1), self.values):
            digest = value.digest(self.truth.run)
            yield self._sign(self.faulty, Prepare(ROUND, view, digest, self.faulty))
            yield self._sign(self.faulty, Commit(ROUND, view, digest, self.faulty))
        # For one value in one view only: each of them doubles the sets that a server may take.
        digest = self.values[0].digest(self.truth.run)
        for vote in (Prepare, Commit):
            yield Message(self.truth.run, vote(ROUND, 0, digest, self.faulty), None, FORGED)
        for view in range(1, self.views + 1):
            yield self._change(view, None)
            for value in self.values:
                yield self._change(view, self._forged_certificate(view - 1, value.record))
        if self.truth.roster.leader(ROUND, 0) == self.faulty:
            for value in self.values:
                yield self._proposal(0, value.record, value.lists, ())

    def _change(self, view: int, proof: Certificate | None) -> Message:
        return self._sign(self.faulty, ViewChange(ROUND, view, self.faulty, proof, None))

    def _forged_certificate(self, view: int, record: Record) -> Certificate:
        """Return a certificate of a quorum for which the faulty server alone has signed."""
        value = record.value(self.truth.run)
        vote = self._sign(self.faulty, Prepare(ROUND, view, value, self.faulty))
        servers = sorted((self.faulty, *self.honest[: self.rules.roster.quorum - 1]))
        signatures = tuple((server, vote.signature) for server in servers)
        return Certificate(Kind.PREPARE, view, record, signatures)

    def _proposal(
        self, view: int, record: Record, lists: tuple[Message, ...], changes: tuple[Message, ...]
    ) -> Message:
        return self._sign(self.faulty, PrePrepare(ROUND, view, self.faulty, record, lists, changes))

    def _proven_changes(self, said: Iterable[Message]) -> Iterator[Message]:
        """Yield view changes with all that it can prove to be prepared, with its own vote."""
        prepares = [m for m in said if m.body.kind == Kind.PREPARE]
        for view, value in product(range(self.views), self.values):
            digest = value.digest(self.truth.run)
            votes = [m for m in prepares if (m.view, m.value) == (view, digest)]
            votes.append(self._sign(self.faulty, Prepare(ROUND, view, digest, self.faulty)))
            if self.rules.enough(vote.server for vote in votes):
                proof = self.rules.certificate(votes, value.record)
                for later in range(view + 1, self.views + 1):
                    yield self._change(later, proof)

    def _new_views(self, changes: list[Message]) -> Iterator[Message]:
        """Yield its proposals as the leader of a later view that the rules let pass.

        It proposes either value, freely or as if bound to it, with the view changes of any quorum.
        """
        for view in range(1, self.views + 1):
            if self.truth.roster.leader(ROUND, view) != self.faulty:
                continue
            here = sorted((m for m in changes if m.view == view), key=lambda m: m.server)
            for some in combinations(here, self.rules.roster.quorum):
                for value, lists in self._candidates():
                    proposal = self._proposal(view, value.record, lists, some)
                    assert isinstance(proposal.body, PrePrepare)
                    if self.rules.proper_proposal(proposal.body):
                        yield proposal

    def _candidates(self) -> Iterator[tuple[Value, tuple[Message, ...]]]:
        for value in self.values:
            yield value, value.lists
            yield value, ()
