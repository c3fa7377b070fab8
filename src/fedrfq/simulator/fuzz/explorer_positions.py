"""The positions of one honest server: what it knows, and all it has said.

Positions are numbered, and each step is taken only once and remembered: replicas are deterministic,
so the same message in the same position always leads to the same position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from fedrfq.consensus.events import (
    Broadcast,
    Decided,
    Effect,
    Event,
    Expired,
    Received,
    Send,
    SetTimer,
    Timer,
)
from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    Certificate,
    Commit,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    ViewChange,
    encode,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.votes import Slots
from fedrfq.simulator.fuzz.explorer_stage import FORGED, SERVERS, Stage
from fedrfq.simulator.fuzz.held_messages import attributes
from fedrfq.simulator.violation import Violation

T = TypeVar("T")
_CONSENSUS = Replica.__module__.rpartition(".")[0]  # the package that a replica's parts are in
# Attributes of a replica that are the same throughout a search: who it is, and what the round is
# decided on.
_IDENTITY = ("rules", "roster", "me", "signer", "application")
_CONSTANT = (*_IDENTITY, "upload_pool", "proposal_pool", "upload_lists")
# Attributes of a replica that have no bearing on what a server says: counters, evidence.
_IRRELEVANT = (*_CONSTANT, "ignored", "effects", "proofs")
# The same of its parts: who and among whom it is, the outcome before, a counter, a cache.
_IRRELEVANT_IN_PARTS = ("_rules", "_roster", "_me", "outcome", "resends", "computed")
_VOTES = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT)
# Messages that a server only keeps until it has enough of them.
_COUNTED = (Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)


class Position(NamedTuple):
    """A replica, what it has said so far, and whether it has decided."""

    replica: Replica
    said: frozenset[Message]
    decided: Certificate | None
    timing: bool  # whether the view's timer runs


class Move(NamedTuple):
    """The messages a server takes (none: its timer expires), and the position it comes to."""

    taken: tuple[Message, ...]
    to: int


class _Step(NamedTuple):
    """The position that a single event leads to, and whether the server does more than count."""

    to: int
    reacts: bool


class _Silent(NamedTuple):
    """Messages, by their indices in the pool, that a server takes without reacting."""

    indices: tuple[int, ...]
    to: int


class Positions:
    """All positions of one honest server that were reached so far, by number; 0 is the first."""

    def __init__(self, stage: Stage, server: int) -> None:
        self.stage = stage
        self.server = server
        self.all: list[Position] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Message | None], _Step] = {}
        replica, effects = stage.opened(server)
        self._number_of(self._after(Position(replica, frozenset(), None, False), effects))

    def _number_of(self, position: Position) -> int:
        """Return the number of a position, which equal positions share."""
        # A server that has decided is done with the round: the rest of its state does not matter.
        state = None
        if position.decided is None:
            state = relevant_state(position.replica)
        key = (freeze(position.said), position.timing, state)
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(position)
        return number

    def moves(self, number: int, pool: dict[Kind, tuple[Message, ...]]) -> list[Move]:
        """Return all that the server can do next, if these messages are on their way to it.

        A delivery that makes a server say nothing can as well come later, just before the one that
        makes it speak. So a move takes a smallest set of messages of one kind that together do.
        """
        position = self.all[number]
        if position.decided is not None:
            return []
        moves = []
        for messages in pool.values():
            moves += _distinct(self._smallest_moves(number, messages))
        if position.timing and position.replica.view < self.stage.views:
            moves.append(Move((), self.step(number, None).to))
        return moves

    def _smallest_moves(self, number: int, messages: tuple[Message, ...]) -> list[Move]:
        """Return the moves that take the fewest of these messages, of which each is needed.

        The sets grow by one message a turn; those that the server reacts to grow no further.
        """
        moves: list[Move] = []
        silent = [_Silent((), number)]
        reacted: list[set[int]] = []
        # One message of each other server is the most that can count together.
        for _ in range(SERVERS - 1):
            longer = []
            for indices, here in silent:
                # Ascending indices, so that each set comes up once.
                first = max(indices, default=-1) + 1
                for index in range(first, len(messages)):
                    chosen = (*indices, index)
                    if any(smaller.issubset(chosen) for smaller in reacted):
                        continue
                    there, reacts = self.step(here, messages[index])
                    if reacts:
                        reacted.append(set(chosen))
                        moves.append(Move(tuple(messages[i] for i in chosen), there))
                    elif there != here:
                        longer.append(_Silent(chosen, there))
            silent = longer
        return moves

    def step(self, number: int, message: Message | None) -> _Step:
        """Return where a message leads from a position, or, without one, the timer."""
        step = self._steps.get((number, message))
        if step is None:
            step = self._take(number, message)
            self._steps[number, message] = step
        return step

    def _take(self, number: int, message: Message | None) -> _Step:
        position = self.all[number]
        replica = fork(position.replica)
        # Each comes over its author's own link, where a server may count it unverified. Who brings
        # the others, which nobody signs, does not matter.
        event: Event = Expired(Timer.VIEW)
        if message is not None:
            peer = message.author
            if peer is None:
                peer = self.stage.faulty
            event = Received(peer, message)
        effects = replica.step(event)
        there = self._number_of(self._after(position._replace(replica=replica), effects))
        counted = message is not None and message.body.kind in _COUNTED
        reacts = any(map(_is_reaction, effects)) or (there != number and not counted)
        return _Step(there, reacts)

    # What must hold of every step of an honest server

    def _after(self, before: Position, effects: Iterable[Effect]) -> Position:
        """Return the position after these effects, each of which is checked."""
        said = set(before.said)
        decided = before.decided
        timing = before.timing
        for effect in effects:
            if isinstance(effect, Broadcast) and effect.message.body.kind != Kind.EVIDENCE:
                self._check_said(effect.message, said)
                said.add(effect.message)
            elif isinstance(effect, Decided):
                self._check_decision(effect.certificate)
                decided = effect.certificate
                said.add(self.stage.truth.unsigned(Cert(decided.record.round, decided)))
            elif isinstance(effect, SetTimer) and effect.timer is Timer.VIEW:
                timing = effect.delay_ms is not None
        return Position(before.replica, frozenset(said), decided, timing)

    def _check_said(self, message: Message, said: set[Message]) -> None:
        """Check a message against all that the server has said before."""
        body = message.body
        describe = self.stage.describe
        for earlier in said:
            invariant = self._broken_invariant(earlier, message)
            if invariant is not None:
                raise Violation(
                    invariant,
                    f"server {self.server} said {describe(earlier)}, now {describe(message)}",
                )
        if body.kind in (Kind.PREPARE, Kind.COMMIT) and message.value not in self.stage.names:
            raise Violation(
                "validity",
                f"server {self.server} votes for a value that is not valid: {describe(message)}",
            )

    def _broken_invariant(self, earlier: Message, message: Message) -> str | None:
        """Return the invariant that a message breaks after an earlier one of the same server."""
        if self.stage.truth.conflict(earlier.body, message.body):
            return "double-sign"
        left = earlier.body.kind == Kind.VIEWCHANGE and message.view < earlier.view
        if left and message.body.kind in _VOTES:
            return "left-view"
        return None

    def _check_decision(self, certificate: Certificate) -> None:
        if not self.stage.truth.certifies(certificate, Kind.COMMIT):
            raise Violation("certificate", f"server {self.server} decided, and cannot prove it")
        if certificate.record.value(self.stage.truth.run) not in self.stage.names:
            raise Violation("validity", f"server {self.server} decided a value that is not valid")


def _distinct(moves: Iterable[Move]) -> list[Move]:
    """Return one of the moves that take the same messages of different servers.

    Which servers' votes make up a quorum does not matter.
    """
    by_content = {frozenset(Counter(map(_anonymous, move.taken)).items()): move for move in moves}
    return list(by_content.values())


def _is_reaction(effect: Effect) -> bool:
    """Return whether others, or the view's timer, notice an effect."""
    if isinstance(effect, Broadcast):
        return effect.message.body.kind != Kind.EVIDENCE
    if isinstance(effect, SetTimer):
        return effect.timer is Timer.VIEW
    return isinstance(effect, Send | Decided)


def fork(replica: Replica) -> Replica:
    """Return a copy that shares only what does not change in a search."""
    twin = _with_own_collections(replica)
    for name, value in attributes(replica).items():
        if _is_part(name, value):
            setattr(twin, name, _with_own_collections(value))
    return twin


def _with_own_collections(thing: T) -> T:
    """Return a copy that shares none of the object's own collections."""
    twin = copy(thing)
    for name, value in attributes(thing).items():
        if isinstance(value, dict | list | set):
            setattr(twin, name, copy(value))
    return twin


def _is_part(name: str, value: object) -> bool:
    """Return whether an attribute of a replica is a part, with state that changes in a search."""
    # Mutants have parts of their own, derived from the true ones.
    modules = [kind.__module__ for kind in type(value).__mro__]
    return name not in _CONSTANT and any(map(_is_of_consensus, modules))


@cache
def _is_of_consensus(module: str) -> bool:
    return module.startswith(_CONSENSUS)


def relevant_state(replica: Replica) -> Hashable:
    """Return all that bears on what a server will say.

    It is the same in whatever order messages came, and whoever made up its quorums.
    """
    relevant: dict[tuple[str, ...], Any] = {}
    for name, value in attributes(replica).items():
        if name in _IRRELEVANT:
            continue
        if not _is_part(name, value):
            relevant[name,] = value
            continue
        for inner, state in attributes(value).items():
            if inner not in _IRRELEVANT_IN_PARTS:
                relevant[name, inner] = state
    prepares_used = _prepares_used(replica)
    changes_used = _changes_used(replica)
    relevant["votes", "prepares"] = _beyond(prepares_used, replica.votes.prepares)
    relevant["view_changes", "changes"] = _beyond(changes_used, replica.view_changes.changes)
    return freeze(relevant)


def _beyond(view: int, slots: Slots) -> Slots:
    """Return the messages of later views than this one."""
    return {server: message for server, message in slots.items() if message.view > view}


def _prepares_used(replica: Replica) -> int:
    """Return the view up to which PREPAREs have done their work: there it has sent its COMMIT."""
    mine = replica.state.own.get(Kind.COMMIT)
    if mine is None:
        return -1
    return mine.view


def _changes_used(replica: Replica) -> int:
    """Return the view up to which view changes have done their work.

    In the server's own view they have if its timer runs, and it has proposed or does not lead.
    """
    mine = replica.state.own.get(Kind.PREPREPARE)
    leader = replica.roster.leader(replica.round, replica.view)
    must_propose = leader == replica.me and (mine is None or mine.view < replica.view)
    if replica.state.timing and not must_propose:
        return replica.view
    return replica.view - 1


def freeze(value: Any) -> Hashable:
    """Return a hashable value that is equal for values that say the same."""
    if isinstance(value, Message):
        return _statement(value)
    if isinstance(value, dict):
        return frozenset((key, freeze(item)) for key, item in value.items())
    if isinstance(value, Certificate):
        return _without_signatures(value).write()
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(freeze, value))
    hashable: Hashable = value
    return hashable


@cache
def _statement(message: Message) -> bytes:
    """Return what a message says and who says it, without proof."""
    return _forgery_mark(message) + encode(message.run, _without_proof(message.body))


@cache
def _anonymous(message: Message) -> bytes:
    """Return what a message says, without proof and without who says it."""
    body = _without_proof(message.body)
    if isinstance(body, Prepare | Commit | ViewChange):
        body = replace(body, server=0)
    return _forgery_mark(message) + encode(message.run, body)


def _forgery_mark(message: Message) -> bytes:
    """Return what tells a message with a bad signature from the same one with a good signature."""
    if message.signature == FORGED:
        return b"forged"
    return b""


def _without_proof(body: AnyMessage) -> AnyMessage:
    if isinstance(body, PrePrepare):
        return replace(body, changes=())
    if isinstance(body, ViewChange) and body.prepared is not None:
        return replace(body, prepared=_without_signatures(body.prepared))
    if isinstance(body, Cert):
        return replace(body, certificate=_without_signatures(body.certificate))
    return body


def _without_signatures(certificate: Certificate) -> Certificate:
    return replace(certificate, signatures=())
