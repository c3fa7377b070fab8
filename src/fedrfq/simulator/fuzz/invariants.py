"""Watches a run, step by step, and raises a `Violation` of the invariant that does not hold:

- agreement, certificate, validity, union, censorship: see `deciding`;
- double-sign, left-view, durability, promise, leader, over: see `signing`;
- accusation: no honest party is accused, and evidence proves itself;
- progress: once the network is calm, views and time are bounded;
- bounded: a server holds no more messages than the numbers of servers and clients allow;
- exception: a step raised something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedrfq.consensus.events import (
    Accused,
    Application,
    Broadcast,
    Decided,
    Event,
    Persist,
    Publish,
    Received,
    Send,
    Start,
)
from fedrfq.consensus.messages import (
    Cert,
    Evidence,
    Fetch,
    Message,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
    author,
)
from fedrfq.consensus.roster import Roster
from fedrfq.simulator.fuzz.decision_invariants import DecisionHistory
from fedrfq.simulator.fuzz.held_messages import messages_held
from fedrfq.simulator.fuzz.observed import OmniscientView
from fedrfq.simulator.fuzz.signing_invariants import SigningHistory
from fedrfq.simulator.message_text import shown
from fedrfq.simulator.party import Relay
from fedrfq.simulator.violation import Violation

if TYPE_CHECKING:
    from fedrfq.simulator.party import Action, SimulatedParty

INVARIANTS = (
    "agreement",
    "certificate",
    "validity",
    "union",
    "censorship",
    "double-sign",
    "left-view",
    "durability",
    "promise",
    "leader",
    "over",
    "accusation",
    "progress",
    "bounded",
    "exception",
)

_EVERY = 4  # timers and the like of a server between two looks at what it holds
_SAYS = frozenset((Persist, Send, Broadcast, Publish, Relay))
_SEEN = frozenset((Upload, UploadList, PrePrepare))


class Observer:
    """Of a run of these parties, honest or not, from the round after `round_`."""

    def __init__(
        self, roster: Roster, application: Application, honest: Iterable[int], round_: int = 0
    ) -> None:
        self.roster = roster
        self.seen = OmniscientView(roster, honest)
        self.chain = DecisionHistory(self.seen, application, application.start(), round_)
        self.books = {party: SigningHistory(self.seen, party) for party in self.seen.honest}
        self.exercised: Counter[str] = Counter()
        self.calm: Callable[[], bool] = lambda: False
        self.most_views = self.most_held = 10**9  # the driver's bounds
        self.held = 0
        self._others: Counter[int] = Counter()  # by server
        self._rough_views: dict[
            int, dict[int, int]
        ] = {}  # by round and server, before the network was calm
        self._asked: dict[
            int, dict[int, ViewChange]
        ] = {}  # by server, what honest others have asked it since it started

    def forgot(self, party: int) -> None:
        """An honest server has lost its log."""
        self.books[party].forget()
        self.chain.forget(party)

    def observe(self, node: SimulatedParty, event: Event, actions: Sequence[Action]) -> None:
        if not node.honest:
            self._overhear(node.party, actions)
            return
        if type(event) is not Received:
            self._other(node, event)
        elif type(event.message.body) is ViewChange:
            self._asks(node, event.message.body)
        if actions:
            book = self.books[node.party]
            for action in actions:
                judge = _JUDGES.get(type(action))
                if judge is not None:
                    judge(self, book, action)

    def _other(self, node: SimulatedParty, event: Event) -> None:
        """No message: now and then, that is when we look at what a server holds."""
        if type(event) is Start:
            self._asked.pop(node.party, None)
        elif node.party >= 0:
            self._others[node.party] += 1
            if self._others[node.party] % _EVERY == 0:
                self.bounded(node)

    def _overhear(self, party: int, actions: Sequence[Action]) -> None:
        """What the faulty say is not judged, but it may turn up in what the honest decide."""
        for action in actions:
            if type(action) in _SAYS and type(action.message.body) in _SEEN:  # type: ignore[union-attr]
                self.seen.note(party, action.message)  # type: ignore[union-attr]

    def _persists(self, book: SigningHistory, action: Persist) -> None:
        """What a party signs is judged as it becomes durable, for nothing is sent that is not."""
        message = action.message
        body = action.message.body
        if message.author not in book.names:
            if type(body) is Upload:
                book.uploads.add(message.digest)
            return
        if type(body) in _SEEN:
            self.seen.note(book.party, message)
        elif type(body) is ViewChange:
            self._bound_views(book.party, body)
        book.persist(message)

    def _sends(self, book: SigningHistory, action: Send | Broadcast | Publish) -> None:
        message = action.message
        body = action.message.body
        if message.author in book.names:
            book.send(message)
        elif type(body) is Fetch:
            self.exercised["fetches"] += 1
        elif type(body) is Cert:
            self.chain.certified(book.party, body.certificate)
        elif type(body) is Evidence:
            self._proves(book.party, body)

    def _bound_views(self, party: int, body: ViewChange) -> None:
        """Nobody goes on alone: a few views from where f+1 honest servers were when it got calm, and no view at all that
        f+1 others have asked it to skip."""
        rough = self._rough_views.setdefault(body.round, {})
        if not self.calm():
            rough[party] = max(body.view, rough.get(party, 0))
        elif body.view > self._nth(rough.values()) + self.most_views:
            raise Violation(
                "progress",
                f"{party} leaves for view {body.view} of round {body.round} in calm weather",
            )
        asked = [
            change.view
            for change in self._asked.get(party, {}).values()
            if change.round == body.round
        ]
        if self._nth(asked) > body.view:
            raise Violation(
                "progress",
                f"{party} leaves for view {body.view}, f+1 others have asked for {self._nth(asked)}",
            )

    def _nth(self, views: Iterable[int]) -> int:
        """The (f+1)st highest."""
        return sorted([*views, *[0] * (self.roster.f + 1)], reverse=True)[self.roster.f]

    def _asks(self, node: SimulatedParty, body: ViewChange) -> None:
        if body.server in self.seen.honest and node.machine.round == body.round:  # type: ignore[attr-defined]
            held = self._asked.setdefault(node.party, {}).get(body.server)
            if held is None or (held.round, held.view) < (body.round, body.view):
                self._asked[node.party][body.server] = body

    def _decides(self, book: SigningHistory, action: Decided) -> None:
        self.chain.decide(book.party, action)
        if (action.outcome is None) == (book.party >= 0):
            self.exercised["catch-ups" if book.party >= 0 else "outcomes fetched by clients"] += 1
        if (
            action.outcome is not None
            and book.party >= 0
            and self.chain.application.over(action.outcome)
        ):
            self.exercised["run over"] += 1
            book.last = action.certificate.record.round

    def _accuses(self, book: SigningHistory, action: Accused) -> None:
        body = action.evidence.body
        assert isinstance(body, Evidence)
        self._proves(book.party, body)
        self.exercised[f"evidence of two {body.first.body.kind.name}" + _and_other(body)] += 1

    def _proves(self, party: int, evidence: Evidence) -> None:
        first = evidence.first
        second = evidence.second
        culprit = self.seen.who(author(first.body))
        if culprit in self.seen.honest:
            raise Violation(
                "accusation", f"{party} accuses {culprit}, who is honest: {shown(evidence)}"
            )
        proved = (
            self.seen.authentic(first) and self.seen.authentic(second) and _conflict(first, second)
        )
        if not proved or evidence.round != first.body.round:
            raise Violation(
                "accusation", f"{party} spreads evidence that proves nothing: {shown(evidence)}"
            )

    def bounded(self, node: SimulatedParty) -> None:
        """Asked of a server now and then."""
        machine: Any = node.machine
        held = messages_held(
            machine, (machine.rules, machine.rules.roster, machine.application, machine.signer)
        )
        self.held = max(held, self.held)
        if held > self.most_held:
            raise Violation(
                "bounded", f"{node.party} holds {held} messages, {self.most_held} are enough"
            )

    def ended(self, nodes: Iterable[SimulatedParty]) -> None:
        """All is quiet: what lists came after a decision is judged too, and what everyone still holds."""
        for round_ in self.chain.sets:
            self.chain.uncensored(round_)
        for node in nodes:
            if node.honest and node.party >= 0:
                self.bounded(node)

    def counted(self) -> Counter[str]:
        """What happened, as far as it was seen here."""
        views = Counter(f"decided in view {view}" for view in self.chain.views.values())
        counts = {
            "view changes": sum(book.view_changes for book in self.books.values()),
            "prepared values carried over": sum(book.carried_over for book in self.books.values()),
            "rounds decided": len(self.chain.sets),
            "change proposals that count": sum(
                client >= self.seen.clients
                for each in self.chain.sets.values()
                for client, _ in each
            ),
        }
        return self.exercised + views + Counter(counts)


_JUDGES: dict[type, Callable[[Observer, SigningHistory, Any], None]] = {
    Persist: Observer._persists,
    Send: Observer._sends,
    Broadcast: Observer._sends,
    Publish: Observer._sends,
    Decided: Observer._decides,
    Accused: Observer._accuses,
}


def _and_other(evidence: Evidence) -> str:
    if evidence.first.body.kind == evidence.second.body.kind:
        return ""
    return f" and {evidence.second.body.kind.name}"


def _conflict(first: Message, second: Message) -> bool:
    """Two different things said where an honest party says one; or a receipt, and a list without it."""
    a = first.body
    b = second.body
    if author(a) != author(b) or a.round != b.round:
        return False
    if isinstance(a, Receipt):
        return isinstance(b, UploadList) and (a.client, a.digest) not in b.entries
    return (
        a.kind == b.kind
        and getattr(a, "view", 0) == getattr(b, "view", 0)
        and first.raw != second.raw
    )


__all__ = ["INVARIANTS", "Observer", "Violation"]
