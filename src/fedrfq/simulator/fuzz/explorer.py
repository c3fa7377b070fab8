"""Every order of events of one round, at n = 4 with one faulty server: a search of all positions that can be reached.

The servers are true replicas. A position of the committee is that of its three honest servers; all that was ever said may
reach anybody at any time or never, and the faulty server says whatever it can (`stage`). A step is one honest server's
move (`positions`). Each server is the faulty one in turn.
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
from fedrfq.simulator.fuzz.explorer_positions import Move, Positions
from fedrfq.simulator.fuzz.explorer_stage import SERVERS, Stage
from fedrfq.simulator.violation import Violation

Joint = tuple[int, ...]  # the positions of the honest servers


class MessagePool(NamedTuple):
    """What may reach a server; one number for the same messages."""

    number: int
    messages: dict[Kind, tuple[Message, ...]]


@dataclass(frozen=True)
class Explored:
    """How far a search came. `complete`: there is nothing deeper; `trace`: how the violation comes about."""

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
    progress: Callable[[Explored], None] = lambda found: None,
) -> Explored:
    """Up to so many steps deep and in views 0 to `views`, or to the first violation: the shortest there is.

    The leader of each of these views is the faulty one, and a server that leads none.
    """
    searches = [
        Search(Stage(faulty, views, replica, rules)) for faulty in range(min(SERVERS, views + 2))
    ]
    found = sum((search.found for search in searches), Explored())
    while found.depth < depth and not found.complete and found.violation is None:
        for search in searches:
            search.deepen()
            found = sum((search.found for search in searches), Explored())
            progress(found)
            if found.violation is not None:
                break
    return found


class Search:
    """Breadth first, with one faulty server."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.found = Explored(states=1, complete=False)
        self.transitions = 0
        self.decided = 0
        self.view = 0
        self.servers = [Positions(stage, server) for server in stage.honest]
        self.here: Joint = (0,) * len(self.servers)  # where the search is at work
        self.layer = [self.here]
        self.came: dict[Joint, tuple[Joint, int, Move] | None] = {self.here: None}
        self._pools: dict[tuple[frozenset[Message], ...], list[MessagePool]] = {}
        self._numbers: dict[frozenset[Message], int] = {}
        self._moves: dict[tuple[int, int, int], list[Move]] = {}

    def deepen(self) -> None:
        """By one step."""
        began = time.perf_counter()
        violation = None
        try:
            self.layer = [after for joint in self.layer for after in self._expand(joint)]
        except Violation as found:
            violation = found
        self.found = Explored(
            len(self.came),
            self.transitions,
            self.found.depth + bool(self.layer),
            self.decided,
            self.view,
            not self.layer,
            self.found.seconds + time.perf_counter() - began,
            violation,
            self._trace() if violation is not None else (),
        )

    def _expand(self, joint: Joint) -> list[Joint]:
        """The new positions one step away."""
        new = []
        self.here = joint
        for index, pool in enumerate(self._pools_of(joint)):
            for move in self._moves_of(index, joint[index], pool):
                self.transitions += 1
                after = (*joint[:index], move.to, *joint[index + 1 :])
                if after not in self.came:
                    self.came[after] = joint, index, move
                    new.append(after)
                    self._check(after)
        return new

    def _check(self, joint: Joint) -> None:
        here = [server.all[at] for server, at in zip(self.servers, joint, strict=True)]
        decided = {position.decided.record for position in here if position.decided is not None}
        self.decided += bool(decided)
        self.view = max(self.view, *(position.replica.view for position in here))
        if len(decided) > 1:
            self.here = joint
            raise Violation("agreement", "two servers decided differently")

    def _moves_of(self, index: int, at: int, pool: MessagePool) -> list[Move]:
        key = index, at, pool.number
        if key not in self._moves:
            self._moves[key] = self.servers[index].moves(at, pool.messages)
        return self._moves[key]

    def _pools_of(self, joint: Joint) -> list[MessagePool]:
        """For each honest server, what may reach it."""
        said = tuple(server.all[at].said for server, at in zip(self.servers, joint, strict=True))
        if said not in self._pools:
            lies = self.stage.lies(ordered(frozenset().union(*said)))
            self._pools[said] = [
                self._pool(frozenset(lies).union(*said[:i], *said[i + 1 :]))
                for i in range(len(said))
            ]
        return self._pools[said]

    def _pool(self, messages: frozenset[Message]) -> MessagePool:
        kinds = {
            kind: tuple(found)
            for kind, found in groupby(ordered(messages), key=lambda m: m.body.kind)
        }
        return MessagePool(self._numbers.setdefault(messages, len(self._numbers)), kinds)

    def _trace(self) -> tuple[str, ...]:
        """How it came to where the search is at work."""
        lines = []
        at = self.came[self.here]
        while at is not None:
            before, index, move = at
            lines.append(self._line(index, before[index], move))
            at = self.came[before]
        return tuple(reversed(lines))

    def _line(self, index: int, at: int, move: Move) -> str:
        server = self.servers[index]
        told = self.stage.told
        taken = ", ".join(map(told, move.taken)) or "its view's timer"
        said = (
            ", ".join(map(told, ordered(server.all[move.to].said - server.all[at].said)))
            or "nothing"
        )
        return f"server {server.server} takes {taken}; says {said}"


def ordered(messages: Iterable[Message]) -> list[Message]:
    """By kind, and always the same."""
    return sorted(messages, key=lambda m: (m.body.kind, m.raw))
