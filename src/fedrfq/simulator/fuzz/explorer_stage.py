"""The stage on which the explorer plays one round: four servers, one of them faulty, and two values that are both valid.

Client 0 has sent to all, client 1 to the faulty server alone. So the lists of the three honest servers lead to one value,
any three with the faulty server's list to another. All lists and uploads have come everywhere when the play begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import NamedTuple

from fedrfq.consensus.events import Broadcast, Effect, Event, Expired, Received, Start, Timer
from fedrfq.consensus.messages import (
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
    write_entries,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster, Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.ideal_signatures import IdealSignatures
from fedrfq.simulator.fuzz.toy import Toy, content

SERVERS = 4
ROUND = 1
_IDEAL = IdealSignatures()


class Value(NamedTuple):
    """A record, the lists it follows from, and its set as whoever lacks it is given it."""

    record: Record
    lists: tuple[Message, ...]
    set_: Message


class Opened(NamedTuple):
    """An honest server as the play begins, and what it has done so far."""

    replica: Replica
    effects: list[Effect]


class Stage:
    """`rules` are those of the servers on stage, broken ones perhaps; `truth` are the true ones."""

    def __init__(self, faulty: int, views: int, replica: type[Replica], rules: type[Rules]) -> None:
        roster = Roster(
            _IDEAL, tuple(map(_IDEAL.key, range(SERVERS))), (_IDEAL.key(~0), _IDEAL.key(~1))
        )
        self.faulty = faulty
        self.views = views
        self.kind = replica
        self.rules = rules(roster)
        self.truth = Rules(roster)
        self.honest = tuple(server for server in range(SERVERS) if server != faulty)
        self.uploads = tuple(
            self._by(~client, Upload(ROUND, client, content(client + 1))) for client in range(2)
        )
        entries = tuple((client, upload.digest) for client, upload in enumerate(self.uploads))
        self.lists = {
            s: self._by(s, UploadList(ROUND, s, entries if s == faulty else entries[:1]))
            for s in range(SERVERS)
        }
        first, second = self.honest[:2]
        self.values = (self._value(self.honest), self._value(sorted((faulty, first, second))))
        self.names = {
            value.record.value(self.truth.run): name
            for value, name in zip(self.values, "ab", strict=True)
        }
        self.fixed = tuple(self._fixed())
        self._lies: dict[tuple[Message, ...], tuple[Message, ...]] = {}

    def _signer(self, party: int) -> Signer:
        return _IDEAL.signer(_IDEAL.key(party))

    def _by(self, party: int, body: AnyMessage) -> Message:
        return self.rules.signed(body, self._signer(party))

    def _value(self, servers: Iterable[int]) -> Value:
        lists = tuple(self.lists[server] for server in servers)
        entries, _ = self.truth.union(lists)
        bodies = [
            body for client, _ in entries if isinstance(body := self.uploads[client].body, Upload)
        ]
        outcome = Toy().decide(ROUND, Toy().start(), bodies)
        record = self.truth.record(ROUND, self.truth.run, entries, outcome)
        return Value(
            record, lists, self.truth.unsigned(Part(ROUND, PartKind.SET, write_entries(entries)))
        )

    def told(self, message: Message) -> str:
        """In short."""
        body = message.body
        words = [message.body.kind.name]
        if isinstance(body, Prepare | Commit):
            words.append(self._name(body.value))
        if isinstance(body, PrePrepare):
            changes = [f"{m.server}{self._shown(m.body)}" for m in body.changes]
            words += [
                self._name(body.record.value(self.truth.run)),
                f"after {' '.join(changes)}" if changes else "",
            ]
        if isinstance(body, Cert):
            words.append(self._name(body.certificate.record.value(self.truth.run)))
        if isinstance(body, ViewChange):
            words.append(self._shown(body))
        if hasattr(body, "view"):
            at = f"view {message.view} by {message.server}"
        else:
            at = ""
        return " ".join(word for word in (*words, at) if word)

    def _name(self, value: bytes) -> str:
        return self.names.get(value, "?")

    def _shown(self, body: AnyMessage) -> str:
        """What a view change says was prepared."""
        if isinstance(body, ViewChange):
            prepared = body.prepared
        else:
            prepared = None
        if prepared is not None:
            return f"({self._name(prepared.record.value(self.truth.run))} in {prepared.view})"
        return ""

    # The honest servers

    def opened(self, server: int) -> Opened:
        """With all uploads and lists, those of the faulty server last."""
        replica = self.kind(self.rules, server, self._signer(server), Toy())
        lists = [self.lists[other] for other in (*self.honest, self.faulty) if other != server]
        events: list[Event] = [Start(), Received(~0, self.uploads[0]), Expired(Timer.DEADLINE)]
        events += [Received(author.server, author) for author in lists]
        events.append(Received(self.faulty, self.uploads[1]))
        effects = [effect for event in events for effect in replica.step(event)]
        said = [effect.message for effect in effects if isinstance(effect, Broadcast)]
        assert self.lists[server] in said, "an honest server lists what it holds"
        return Opened(replica, effects)

    # The faulty server

    def lies(self, said: Iterable[Message]) -> tuple[Message, ...]:
        """All that the faulty server can say that may matter, once the honest have said this much."""
        useful = tuple(m for m in said if m.body.kind in (Kind.PREPARE, Kind.VIEWCHANGE))
        if useful not in self._lies:
            mine = tuple(self._proven(useful))
            changes = [m for m in (*useful, *self.fixed, *mine) if m.body.kind == Kind.VIEWCHANGE]
            self._lies[useful] = (*self.fixed, *mine, *self._new_views(changes))
        return self._lies[useful]

    def _fixed(self) -> Iterator[Message]:
        """What it can say from the start: votes and first proposals of either value; that nothing is prepared,
        or something, without proof."""
        yield from (value.set_ for value in self.values)
        for view, value in product(range(self.views + 1), self.values):
            name = value.record.value(self.truth.run)
            yield from (
                self._by(self.faulty, vote(ROUND, view, name, self.faulty))
                for vote in (Prepare, Commit)
            )
        for view in range(1, self.views + 1):
            yield self._change(view, None)
            yield from (
                self._change(view, self._forged(view - 1, value.record)) for value in self.values
            )
        if self.truth.roster.leader(ROUND, 0) == self.faulty:
            yield from (self._proposal(0, value.record, value.lists, ()) for value in self.values)

    def _change(self, view: int, proof: Certificate | None) -> Message:
        return self._by(self.faulty, ViewChange(ROUND, view, self.faulty, proof, None))

    def _forged(self, view: int, record: Record) -> Certificate:
        """Of a quorum of which it is the only one that signed."""
        vote = self._by(
            self.faulty, Prepare(ROUND, view, record.value(self.truth.run), self.faulty)
        )
        servers = sorted((self.faulty, *self.honest[: self.rules.roster.quorum - 1]))
        return Certificate(
            Kind.PREPARE, view, record, tuple((server, vote.signature) for server in servers)
        )

    def _proposal(
        self, view: int, record: Record, lists: tuple[Message, ...], changes: tuple[Message, ...]
    ) -> Message:
        return self._by(self.faulty, PrePrepare(ROUND, view, self.faulty, record, lists, changes))

    def _proven(self, said: Iterable[Message]) -> Iterator[Message]:
        """View changes with all that can be shown as prepared, its own vote counted."""
        for view, value in product(range(self.views), self.values):
            name = value.record.value(self.truth.run)
            votes = [
                m for m in said if m.body.kind == Kind.PREPARE and (m.view, m.value) == (view, name)
            ]
            votes.append(self._by(self.faulty, Prepare(ROUND, view, name, self.faulty)))
            if self.rules.enough(vote.server for vote in votes):
                proof = self.rules.certificate(votes, value.record)
                yield from (self._change(later, proof) for later in range(view + 1, self.views + 1))

    def _new_views(self, changes: list[Message]) -> Iterator[Message]:
        """As a later view's leader, with any quorum's word: either value, free or bound, if the rules let it pass."""
        for view in range(1, self.views + 1):
            here = sorted((m for m in changes if m.view == view), key=lambda m: m.server)
            leads = self.truth.roster.leader(ROUND, view) == self.faulty
            for some in combinations(here if leads else (), self.rules.roster.quorum):
                for value, lists in product(self.values, (True, False)):
                    found = self._proposal(view, value.record, value.lists if lists else (), some)
                    if isinstance(found.body, PrePrepare) and self.rules.proper_proposal(
                        found.body
                    ):
                        yield found
