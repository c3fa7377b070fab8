"""The observer: it watches a run step by step, and raises a `Violation` where an invariant breaks.

- agreement, certificate, validity, union, censorship: see `decision_invariants`;
- double-sign, left-view, durability, promise, leader, over: see `signing_invariants`;
- accusation: no honest party is accused, and evidence proves itself;
- handed-on: see `evidence_invariants`;
- progress: once the network is calm, views and time are bounded;
- bounded: a server holds no more messages than the numbers of servers and clients allow, and no
  more bytes, in memory and in its log, than honest messages take (see `storage_bounds`);
- exception: a step raised an error (`World` checks this).
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
from fedrfq.consensus.evidence import offence
from fedrfq.consensus.messages import (
    Cert,
    ChangeProposal,
    Evidence,
    Fetch,
    Message,
    Part,
    PartKind,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
    author,
)
from fedrfq.consensus.roster import Roster
from fedrfq.simulator.fuzz.decision_invariants import DecisionHistory
from fedrfq.simulator.fuzz.evidence_invariants import EvidenceHistory
from fedrfq.simulator.fuzz.held_messages import messages_held
from fedrfq.simulator.fuzz.observed import OmniscientView
from fedrfq.simulator.fuzz.signing_invariants import SigningHistory
from fedrfq.simulator.fuzz.storage_bounds import LogGrowth, StorageBounds
from fedrfq.simulator.message_text import readable
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
    "handed-on",
    "progress",
    "bounded",
    "exception",
)

_CHECK_EVERY = 4  # timers and other local events of a server between two counts of what it holds
_UNBOUNDED = 10**9
_CARRIES_MESSAGE = frozenset((Persist, Send, Broadcast, Publish, Relay))
_NOTED = frozenset((Upload, ChangeProposal, UploadList, PrePrepare))


class Observer:
    """Watches the parties of a run, from the round after `round_`; `honest` names the honest ones.

    The driver sets `max_views` and `max_held`, and `calm`, which tells whether the network is calm.
    It calls `bound_storage` to bound what servers store.
    """

    def __init__(
        self, roster: Roster, application: Application, honest: Iterable[int], round_: int = 0
    ) -> None:
        self.roster = roster
        self.seen = OmniscientView(roster, honest)
        self.chain = DecisionHistory(self.seen, application, application.start(), round_)
        self.signing = {party: SigningHistory(self.seen, party) for party in self.seen.honest}
        self.evidence = EvidenceHistory(party for party in self.seen.honest if party >= 0)
        self.exercised: Counter[str] = Counter()
        self.calm: Callable[[], bool] = lambda: False
        self.max_views = _UNBOUNDED
        self.max_held = _UNBOUNDED
        self.held = 0
        self.logs: dict[int, LogGrowth] = {}
        self._local_events: Counter[int] = Counter()  # by server
        # By round and server, the highest view before the network was calm.
        self._rough_views: dict[int, dict[int, int]] = {}
        # By server, the latest view change of each honest server that it got since it started.
        self._asked: dict[int, dict[int, ViewChange]] = {}

    def bound_storage(self, bounds: StorageBounds) -> None:
        """Bound what each honest server stores."""
        servers = [party for party in self.seen.honest if party >= 0]
        self.logs = {server: LogGrowth(bounds, server) for server in servers}

    def crashed(self, party: int) -> None:
        """Note that an honest party has crashed."""
        if party >= 0:
            self.evidence.leave(party)

    def forgot(self, party: int) -> None:
        """Note that an honest server has lost its log."""
        self.evidence.forget(party)
        if party in self.logs:
            self.logs[party].forget()
        self.signing[party].forget()
        self.chain.forget(party)

    def observe(self, node: SimulatedParty, event: Event, actions: Sequence[Action]) -> None:
        """Judge the actions of an honest party, or take note of a faulty one's."""
        if not node.honest:
            self._overhear(node.party, actions)
            return
        if type(event) is not Received:
            self._note_local_event(node, event)
        elif type(event.message.body) is ViewChange:
            self._note_view_change(node, event.message.body)
        elif type(event.message.body) is Cert:
            self._note_catching_up(node, actions)
        elif type(event.message.body) is Part:
            self._note_handed_on(event.peer, event.message.body, actions)
        if actions:
            history = self.signing[node.party]
            for action in actions:
                judge = _JUDGES.get(type(action))
                if judge is not None:
                    judge(self, history, action)

    def _note_local_event(self, node: SimulatedParty, event: Event) -> None:
        """Count what a server holds at every few of its timers; at every message would be slow."""
        # A server that restarts has forgotten which views it was asked for.
        if type(event) is Start:
            if self.evidence.come_back(node.party):
                self._note_return(node)
            self._asked.pop(node.party, None)
            if node.party in self.logs:
                self.logs[node.party].restart()
        elif node.party >= 0:
            self._local_events[node.party] += 1
            if self._local_events[node.party] % _CHECK_EVERY == 0:
                self.check_held(node)

    def _note_return(self, node: SimulatedParty) -> None:
        """Expect who restarts to ask for evidence, unless it looks like a first start.

        So it does where a server has signed nothing yet, and knows no round that is decided.
        """
        said = any(m.author == node.party or type(m.body) is Cert for m in node.log)
        if said and self.calm():
            self.evidence.ask(node.party)

    def _note_catching_up(self, node: SimulatedParty, actions: Sequence[Action]) -> None:
        """Expect who has caught up to ask for evidence: who last decided by others' certificate.

        After some certificates a server decides the next round by votes that it has kept.
        """
        if node.party < 0 or not self.calm():
            return
        machine: Any = node.machine
        decided = sum(type(action) is Decided for action in actions)
        if decided == 1 and machine.round >= machine.certificates.highest_round_heard:
            self.evidence.ask(node.party)

    def _note_handed_on(self, peer: int, part: Part, actions: Sequence[Action]) -> None:
        if part.what is PartKind.EVIDENCE and peer in self.seen.honest:
            accused = sum(type(action) is Accused for action in actions)
            self.exercised["proofs handed on"] += accused

    def _overhear(self, party: int, actions: Sequence[Action]) -> None:
        """Note what a faulty party says: it is not judged, but the honest may decide on it."""
        for action in actions:
            if type(action) in _CARRIES_MESSAGE and type(action.message.body) in _NOTED:  # type: ignore[union-attr]
                self.seen.note(party, action.message)  # type: ignore[union-attr]

    def _judge_persist(self, history: SigningHistory, action: Persist) -> None:
        """Judge what a party signs as it becomes durable: nothing is sent before that."""
        message = action.message
        body = action.message.body
        if history.party in self.logs:
            self.logs[history.party].persist(message)
        if type(body) is Evidence:
            self.evidence.learn(history.party, offence(body))
        if message.author != history.party:
            # Of others' messages only uploads matter: receipts promise that they are durable.
            if type(body) is Upload:
                history.uploads.add(message.digest)
            return
        if type(body) in _NOTED:
            self.seen.note(history.party, message)
        elif type(body) is ViewChange:
            self._check_views(history.party, body)
        history.persist(message)

    def _judge_send(self, history: SigningHistory, action: Send | Broadcast | Publish) -> None:
        message = action.message
        body = action.message.body
        if message.author == history.party:
            history.send(message)
        elif type(body) is Fetch:
            self.exercised["fetches"] += 1
        elif type(body) is Cert:
            self.chain.believe(history.party, body.certificate)
        elif type(body) is Evidence:
            self._check_evidence(history.party, body)

    def _check_views(self, party: int, body: ViewChange) -> None:
        """Check that no server runs ahead alone or lags behind alone.

        On a calm network it goes at most `max_views` views beyond where f+1 honest servers were
        when the network got calm; and it never asks for a view lower than the one that f+1 others
        have asked it for.
        """
        rough = self._rough_views.setdefault(body.round, {})
        if not self.calm():
            rough[party] = max(body.view, rough.get(party, 0))
        elif body.view > self._reached_by_some_honest(rough.values()) + self.max_views:
            raise Violation(
                "progress",
                f"{party} leaves for view {body.view} of round {body.round} on a calm network",
            )
        asked = self._asked.get(party, {}).values()
        wanted = self._reached_by_some_honest(
            change.view for change in asked if change.round == body.round
        )
        if wanted > body.view:
            raise Violation(
                "progress",
                f"{party} leaves for view {body.view}, but f+1 others have asked for {wanted}",
            )

    def _reached_by_some_honest(self, views: Iterable[int]) -> int:
        """Return the (f+1)st highest view: f+1 servers, so an honest one, have got that far."""
        padded = [*views, *[0] * (self.roster.f + 1)]
        return sorted(padded, reverse=True)[self.roster.f]

    def _note_view_change(self, node: SimulatedParty, body: ViewChange) -> None:
        if body.server in self.seen.honest and node.machine.round == body.round:  # type: ignore[attr-defined]
            asked = self._asked.setdefault(node.party, {})
            latest = asked.get(body.server)
            if latest is None or (latest.round, latest.view) < (body.round, body.view):
                asked[body.server] = body

    def _judge_decision(self, history: SigningHistory, action: Decided) -> None:
        self.chain.decide(history.party, action)
        outcome = action.outcome
        # A server that decides without an outcome catches up: it has only the certificate so far.
        if history.party < 0:
            if outcome is not None:
                self.exercised["outcomes fetched by clients"] += 1
            return
        if outcome is None:
            self.exercised["catch-ups"] += 1
        record = action.certificate.record
        if record.ends_run():
            self.exercised["run over"] += 1
            history.last_round = record.round

    def _judge_accusation(self, history: SigningHistory, action: Accused) -> None:
        evidence = action.evidence.body
        assert isinstance(evidence, Evidence)
        self._check_evidence(history.party, evidence)
        self.exercised[f"evidence of two {_kinds(evidence)}"] += 1

    def _check_evidence(self, party: int, evidence: Evidence) -> None:
        first = evidence.first
        second = evidence.second
        culprit = author(first.body)
        if culprit in self.seen.honest:
            raise Violation(
                "accusation", f"{party} accuses {culprit}, who is honest: {readable(evidence)}"
            )
        signed = self.seen.is_authentic(first) and self.seen.is_authentic(second)
        proved = signed and _is_conflict(first, second)
        if not proved or evidence.round != first.body.round:
            raise Violation(
                "accusation", f"{party} spreads evidence that proves nothing: {readable(evidence)}"
            )

    def check_held(self, node: SimulatedParty) -> None:
        """Check that a server holds no more messages, and no larger ones, than it may."""
        machine: Any = node.machine
        shared = (machine.rules, machine.rules.roster, machine.application, machine.signer)
        messages = messages_held(machine, shared)
        held = len(messages)
        self.held = max(held, self.held)
        if held > self.max_held:
            raise Violation(
                "bounded", f"{node.party} holds {held} messages, and {self.max_held} are enough"
            )
        if node.party in self.logs:
            self.logs[node.party].check_memory(machine.round, messages)

    def finish(self, nodes: Iterable[SimulatedParty]) -> None:
        """Judge what can only be judged at the end: what was left out, missed or is still held."""
        for round_ in self.chain.sets:
            self.chain.check_censorship(round_)
        self.evidence.finish()
        for node in nodes:
            if node.honest and node.party >= 0:
                self.check_held(node)

    def counted(self) -> Counter[str]:
        """Return how often each thing happened, as far as it was seen here."""
        views = Counter(f"decided in view {view}" for view in self.chain.views.values())
        histories = self.signing.values()
        counts = {
            "view changes": sum(history.view_changes for history in histories),
            "prepared values carried over": sum(history.carried_over for history in histories),
            "rounds decided": len(self.chain.sets),
            "change proposals that count": sum(
                len(inputs.proposals) for inputs in self.chain.sets.values()
            ),
        }
        return self.exercised + views + Counter(counts)


_JUDGES: dict[type, Callable[[Observer, SigningHistory, Any], None]] = {
    Persist: Observer._judge_persist,
    Send: Observer._judge_send,
    Broadcast: Observer._judge_send,
    Publish: Observer._judge_send,
    Decided: Observer._judge_decision,
    Accused: Observer._judge_accusation,
}


def _kinds(evidence: Evidence) -> str:
    """Name the kind of both messages, or both kinds where they differ."""
    first = evidence.first.body.kind
    second = evidence.second.body.kind
    if first == second:
        return first.name
    return f"{first.name} and {second.name}"


def _is_conflict(first: Message, second: Message) -> bool:
    """Return whether two messages of one author prove that it lied.

    They say different things where an honest party says one; or they are a receipt, and a list
    that does not have what the receipt promises.
    """
    a = first.body
    b = second.body
    if author(a) != author(b) or a.round != b.round:
        return False
    if isinstance(a, Receipt):
        return isinstance(b, UploadList) and (a.client, a.digest) not in b.entries
    same_place = a.kind == b.kind and getattr(a, "view", 0) == getattr(b, "view", 0)
    return same_place and first.raw != second.raw


__all__ = ["INVARIANTS", "Observer", "Violation"]
