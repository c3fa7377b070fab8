"""Explore every order of events of one round among four servers, one of them faulty.

The servers are true replicas. A joint position is the positions of the three honest servers. All
that was ever said may reach anybody at any time or never, and the faulty server says whatever it
can (`explorer_stage`). A step is one move of one honest server (`explorer_positions`). Each server
is the faulty one in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from fedrfq.consensus.messages import Kind, Message
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.explorer_positions import Move, Position, Positions
from fedrfq.simulator.fuzz.explorer_stage import SERVERS, Stage
from fedrfq.simulator.violation import Violation

Joint = tuple[int, ...]  # the numbers of the honest servers' positions


class MessagePool(NamedTuple):
    """The messages that may reach a server; equal pools have the same number."""

    number: int
    messages: dict[Kind, tuple[Message, ...]]


class _Arrival(NamedTuple):
    """How a joint position was first reached: a move of one honest server."""

    before: Joint
    server_index: int  # among the honest servers
    move: Move


@dataclass(frozen=True)
class Explored:
    """How far a search came.

    It is `complete` when nothing lies deeper. `trace` tells how the violation comes about.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    decided: int = 0  # states in which some server has decided
    view: int = 0  # the highest reached
    complete: bool = True
    seconds: float = 0.0
    violation: Violation | None = None
    trace: tuple[str, ...] = ()

    def __add__(self, other: Explored) -> Explored:
        return Explored(
            self.states + other.states,
            self.transitions + other.transitions,
            max(self.depth, other.depth),
            self.decided + other.decided,
            max(self.view, other.view),
            self.complete and other.complete,
            self.seconds + other.seconds,
            self.violation or other.violation,
            self.trace or other.trace,
        )


def explore(
    depth: int,
    views: int = 1,
    replica: type[Replica] = Replica,
    rules: type[Rules] = Rules,
    progress: Callable[[Explored], None] = lambda explored: None,
) -> Explored:
    """Search up to this many steps deep, in views 0 to `views`, or to the first violation.

    The search is breadth first, so the violation it finds is the shortest there is. The leader of
    each of these views is faulty in one search, and in another a server that leads none of them.
    """
    faulty_servers = range(min(SERVERS, views + 2))
    searches = [Search(Stage(faulty, views, replica, rules)) for faulty in faulty_servers]
    explored = _total(searches)
    while explored.depth < depth and not explored.complete and explored.violation is None:
        for search in searches:
            search.deepen()
            explored = _total(searches)
            progress(explored)
            if explored.violation is not None:
                break
    return explored


def _total(searches: Iterable[Search]) -> Explored:
    return sum((search.explored for search in searches), Explored())


class Search:
    """A breadth-first search with one faulty server."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.explored = Explored(states=1, complete=False)
        self.transitions = 0
        self.decided = 0
        self.view = 0
        self.servers = [Positions(stage, server) for server in stage.honest]
        self.current: Joint = (0,) * len(self.servers)
        self.layer = [self.current]
        self.arrivals: dict[Joint, _Arrival | None] = {self.current: None}
        self._pools: dict[tuple[frozenset[Message], ...], list[MessagePool]] = {}
        self._pool_numbers: dict[frozenset[Message], int] = {}
        self._moves: dict[tuple[int, int, int], list[Move]] = {}

    def deepen(self) -> None:
        """Search one step deeper."""
        start = time.perf_counter()
        violation = None
        try:
            self.layer = [after for joint in self.layer for after in self._expand(joint)]
        except Violation as broken:
            violation = broken
        self.explored = Explored(
            states=len(self.arrivals),
            transitions=self.transitions,
            depth=self.explored.depth + bool(self.layer),
            decided=self.decided,
            view=self.view,
            complete=not self.layer,
            seconds=self.explored.seconds + time.perf_counter() - start,
            violation=violation,
            trace=self._trace() if violation is not None else (),
        )

    def _expand(self, joint: Joint) -> list[Joint]:
        """Return the new joint positions one step away."""
        new = []
        self.current = joint
        for index, pool in enumerate(self.pools_of(joint)):
            for move in self._moves_of(index, joint[index], pool):
                self.transitions += 1
                after = (*joint[:index], move.to, *joint[index + 1 :])
                if after not in self.arrivals:
                    self.arrivals[after] = _Arrival(joint, index, move)
                    new.append(after)
                    self._check(after)
        return new

    def positions(self, joint: Joint) -> list[Position]:
        """Return the position of each honest server."""
        return [server.all[number] for server, number in zip(self.servers, joint, strict=True)]

    def _check(self, joint: Joint) -> None:
        """Count what a joint position is, and check agreement in it."""
        positions = self.positions(joint)
        decided = {
            position.decided.record for position in positions if position.decided is not None
        }
        self.decided += bool(decided)
        self.view = max(self.view, *(position.replica.view for position in positions))
        if len(decided) > 1:
            self.current = joint  # the trace leads here
            raise Violation("agreement", "two servers decided differently")

    def _moves_of(self, index: int, number: int, pool: MessagePool) -> list[Move]:
        key = (index, number, pool.number)
        if key not in self._moves:
            self._moves[key] = self.servers[index].moves(number, pool.messages)
        return self._moves[key]

    def pools_of(self, joint: Joint) -> list[MessagePool]:
        """Return, for each honest server, the messages that may reach it."""
        said = tuple(position.said for position in self.positions(joint))
        if said not in self._pools:
            lies = frozenset(self.stage.lies(ordered(frozenset().union(*said))))
            # Nobody gets its own messages.
            self._pools[said] = [
                self._pool(lies.union(*said[:index], *said[index + 1 :]))
                for index in range(len(said))
            ]
        return self._pools[said]

    def _pool(self, messages: frozenset[Message]) -> MessagePool:
        by_kind = groupby(ordered(messages), key=lambda message: message.body.kind)
        kinds = {kind: tuple(group) for kind, group in by_kind}
        number = self._pool_numbers.setdefault(messages, len(self._pool_numbers))
        return MessagePool(number, kinds)

    def _trace(self) -> tuple[str, ...]:
        """Return the moves that lead to the current joint position, a line each."""
        lines = []
        arrival = self.arrivals[self.current]
        while arrival is not None:
            lines.append(self._line(arrival))
            arrival = self.arrivals[arrival.before]
        return tuple(reversed(lines))

    def _line(self, arrival: _Arrival) -> str:
        server = self.servers[arrival.server_index]
        move = arrival.move
        said_before = server.all[arrival.before[arrival.server_index]].said
        said_now = ordered(server.all[move.to].said - said_before)
        describe = self.stage.describe
        taken = ", ".join(map(describe, move.taken)) or "its view's timer"
        said = ", ".join(map(describe, said_now)) or "nothing"
        return f"server {server.server} takes {taken}; says {said}"


def ordered(messages: Iterable[Message]) -> list[Message]:
    """Return messages by kind, in an order that is the same in every run."""
    return sorted(messages, key=lambda message: (message.body.kind, message.raw))
