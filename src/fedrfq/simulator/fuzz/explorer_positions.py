"""The positions of one honest server, numbered: what it holds in mind, and all it has said. A step is taken once, and
remembered: replicas are pure, so the same message in the same position leads to the same place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

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
from fedrfq.simulator.fuzz.explorer_stage import SERVERS, Stage
from fedrfq.simulator.fuzz.held_messages import attributes
from fedrfq.simulator.violation import Violation

# What is the same throughout the play, or has no bearing on what a server says: counters, the evidence it holds, a cache.
_SAME = ("rules", "roster", "me", "signer", "application", "holdings", "lists", "outcome")
_IDLE = (*_SAME, "ignored", "effects", "accused", "resends", "computed")
_VOTES = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT)
_COUNTED = (
    Kind.PREPARE,
    Kind.COMMIT,
    Kind.VIEWCHANGE,
)  # what is only kept until there is enough of it


class Position(NamedTuple):
    replica: Replica
    said: frozenset[Message]
    decided: Certificate | None
    timing: bool  # whether the view's timer runs


class Move(NamedTuple):
    """The messages a server takes in (none: its timer expires), and the position it comes to."""

    taken: tuple[Message, ...]
    to: int


class Positions:
    def __init__(self, stage: Stage, server: int) -> None:
        self.stage = stage
        self.server = server
        self.all: list[Position] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Message | None], tuple[int, bool]] = {}
        replica, effects = stage.opened(server)
        self._number(self._after(Position(replica, frozenset(), None, False), effects))

    def _number(self, position: Position) -> int:
        """Equal positions have one number; a decided server is done with the round, whatever else it holds."""
        ended = position.decided is not None
        key = (
            frozen(position.said),
            position.timing,
            None if ended else likeness(position.replica),
        )
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(position)
        return number

    def moves(self, at: int, pool: dict[Kind, tuple[Message, ...]]) -> list[Move]:
        """All it can do next, if these messages are on their way to it.

        A delivery that makes a server say nothing can as well come later, just before the one that makes it speak. So a
        move takes a smallest set of messages of one kind that together do.
        """
        position = self.all[at]
        if position.decided is not None:
            return []
        found = [
            move for messages in pool.values() for move in _distinct(self._smallest(at, messages))
        ]
        if position.timing and position.replica.view < self.stage.views:
            found.append(Move((), self._step(at, None)[0]))
        return found

    def _smallest(self, at: int, messages: tuple[Message, ...]) -> list[Move]:
        found: list[Move] = []
        silent: list[tuple[tuple[int, ...], int]] = [((), at)]
        enough: list[set[int]] = []
        for _ in range(SERVERS - 1):
            longer = []
            for taken, here in silent:
                for index in range(taken[-1] + 1 if taken else 0, len(messages)):
                    chosen = (*taken, index)
                    if any(some.issubset(chosen) for some in enough):
                        continue
                    there, spoke = self._step(here, messages[index])
                    if spoke:
                        enough.append(set(chosen))
                        found.append(Move(tuple(messages[i] for i in chosen), there))
                    elif there != here:
                        longer.append((chosen, there))
            silent = longer
        return found

    def _step(self, at: int, message: Message | None) -> tuple[int, bool]:
        """Where a message, or the timer, leads, and whether it does more than count."""
        known = self._steps.get((at, message))
        if known is None:
            known = self._steps[at, message] = self._take(at, message)
        return known

    def _take(self, at: int, message: Message | None) -> tuple[int, bool]:
        position = self.all[at]
        replica = fork(position.replica)
        event: Event = Expired(Timer.VIEW)
        if message is not None:
            event = Received(self.stage.faulty, message)
        effects = replica.step(event)
        there = self._number(self._after(position._replace(replica=replica), effects))
        counted = message is not None and message.body.kind in _COUNTED
        return there, any(map(_noticed, effects)) or (there != at and not counted)

    # What must hold of every step of an honest server

    def _after(self, before: Position, effects: Iterable[Effect]) -> Position:
        said = set(before.said)
        decided = before.decided
        timing = before.timing
        for effect in effects:
            if isinstance(effect, Broadcast) and effect.message.body.kind != Kind.EVIDENCE:
                self._check_word(effect.message, said)
                said.add(effect.message)
            elif isinstance(effect, Decided):
                self._check_decision(effect.certificate)
                decided = effect.certificate
                said.add(self.stage.truth.unsigned(Cert(decided.record.round, decided)))
            elif isinstance(effect, SetTimer) and effect.timer is Timer.VIEW:
                timing = effect.delay_ms is not None
        return Position(before.replica, frozenset(said), decided, timing)

    def _check_word(self, message: Message, said: set[Message]) -> None:
        body = message.body
        for earlier in said:
            if self.stage.truth.conflict(earlier.body, body):
                raise Violation(
                    "double-sign",
                    f"server {self.server} said {self.stage.told(earlier)}, now {self.stage.told(message)}",
                )
            if (
                earlier.body.kind == Kind.VIEWCHANGE
                and body.kind in _VOTES
                and message.view < earlier.view
            ):
                raise Violation(
                    "left-view",
                    f"server {self.server} said {self.stage.told(earlier)}, now {self.stage.told(message)}",
                )
        if body.kind in (Kind.PREPARE, Kind.COMMIT) and message.value not in self.stage.names:
            raise Violation(
                "validity",
                f"server {self.server} votes for a value that does not follow: {self.stage.told(message)}",
            )

    def _check_decision(self, certificate: Certificate) -> None:
        if not self.stage.truth.certifies(certificate, Kind.COMMIT):
            raise Violation("certificate", f"server {self.server} decided, and cannot prove it")
        if certificate.record.value(self.stage.truth.run) not in self.stage.names:
            raise Violation("validity", f"server {self.server} decided what does not follow")


def _distinct(moves: Iterable[Move]) -> list[Move]:
    """One of those that take in the same of different servers: which votes make up a quorum does not matter."""
    found = {
        frozenset(Counter(_shape(message) for message in move.taken).items()): move
        for move in moves
    }
    return list(found.values())


def _noticed(effect: Effect) -> bool:
    if isinstance(effect, Broadcast):
        return effect.message.body.kind != Kind.EVIDENCE
    return isinstance(effect, Send | Decided) or (
        isinstance(effect, SetTimer) and effect.timer is Timer.VIEW
    )


def fork(replica: Replica) -> Replica:
    """A copy that shares only what does not change in the play."""
    twin = type(replica)(
        replica.rules, replica.me, replica.signer, replica.application
    )  # compiled ones cannot be copied
    for name, item in attributes(replica).items():
        setattr(twin, name, copy(item) if isinstance(item, dict | list | set) else item)
    return twin


def likeness(replica: Replica) -> Hashable:
    """All that bears on what a server will say: the same in whatever order it came, and whoever made up its quorums."""
    idle = {"prepares": _committed(replica), "changes": _changed(replica)}
    state = attributes(replica)
    slots = {
        name: {s: m for s, m in state[name].items() if m.view > over} for name, over in idle.items()
    }
    return frozen({name: item for name, item in state.items() if name not in _IDLE} | slots)


def _committed(replica: Replica) -> int:
    """The view up to which votes to prepare have done their work."""
    mine = replica.own.get(Kind.COMMIT)
    if mine is not None:
        return mine.view
    return -1


def _changed(replica: Replica) -> int:
    """The view up to which view changes have: its timer runs, and it has proposed or leaves that to others."""
    mine = replica.own.get(Kind.PREPREPARE)
    leader = replica.roster.leader(replica.round, replica.view)
    waits = leader == replica.me and (mine is None or mine.view < replica.view)
    if replica.timing and not waits:
        return replica.view
    return replica.view - 1


def frozen(value: Any) -> Hashable:
    """A hashable likeness."""
    if isinstance(value, Message):
        return name(value)
    if isinstance(value, dict):
        return frozenset((key, frozen(item)) for key, item in value.items())
    if isinstance(value, Certificate):
        return _bare(value).write()
    if isinstance(value, list):
        return tuple(map(frozen, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(frozen, value))
    found: Hashable = value
    return found


@cache
def name(message: Message) -> bytes:
    """What a message says and who says it."""
    return encode(message.run, _unproved(message.body))


@cache
def _shape(message: Message) -> bytes:
    """What it says, whoever says it."""
    body = _unproved(message.body)
    return encode(
        message.run,
        replace(body, server=0) if isinstance(body, Prepare | Commit | ViewChange) else body,
    )


def _unproved(body: AnyMessage) -> AnyMessage:
    """Without what proves it."""
    if isinstance(body, PrePrepare):
        return replace(body, changes=())
    if isinstance(body, ViewChange) and body.prepared is not None:
        return replace(body, prepared=_bare(body.prepared))
    if isinstance(body, Cert):
        return replace(body, certificate=_bare(body.certificate))
    return body


def _bare(certificate: Certificate) -> Certificate:
    return replace(certificate, signatures=())
