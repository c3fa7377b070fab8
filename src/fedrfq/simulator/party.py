"""A party where it runs, what it does there, and how it crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fedrfq.consensus.events import Decided, Effect, Event, Persist, Timer
from fedrfq.consensus.messages import Kind, Message


class Relay(NamedTuple):
    """What only the faulty do: one of them speaks over the channel of another of them."""

    origin: int
    to: int
    message: Message


class RawBytes(NamedTuple):
    """Bytes of a faulty party that need not be a message; they arrive only where messages travel as bytes."""

    to: int
    data: bytes


Action = Effect | Relay | RawBytes


class SimulatedMachine(Protocol):
    def step(self, event: Event) -> Sequence[Action]: ...


class Watch(Protocol):
    """Sees everything a party does, before the next thing happens; raises a `Violation`."""

    def acted(self, node: SimulatedParty, event: Event, actions: Sequence[Action]) -> None: ...


class Crash(NamedTuple):
    """A party carries out only so many effects, and is away for a while: in its step of this number, or, where a kind is
    named, counted from when it has made a message of that kind, of this round or later, durable. Who `forgets` has lost
    its log when it comes back, and knows it."""

    party: int
    step: int
    effects: int
    away_ms: int
    kind: Kind | None = None
    round: int = 0
    forgets: bool = False

    def cut(self, actions: Sequence[Action]) -> int | None:
        """How many of these actions are carried out; none if the time has not come."""
        if self.kind is None:
            return self.effects
        for at, action in enumerate(actions):
            if isinstance(action, Persist):
                body = action.message.body
            else:
                body = None
            if body is not None and body.kind == self.kind and body.round >= self.round:
                return at + 1 + self.effects
        return None


class SimulatedParty:
    """A party where it runs. What outlives a crash is the log, and what the world has seen of it."""

    def __init__(
        self,
        party: int,
        make: Callable[[list[Message]], SimulatedMachine],
        log: Iterable[Message],
        honest: bool,
    ) -> None:
        self.party = party
        self.make = make
        self.honest = honest
        self.log = list(log)
        self.machine = make(self.log)
        self.up = True
        self.steps = 0
        self.crashes: list[Crash] = []
        self.timers: dict[Timer, int] = {}
        self.decided: dict[int, Decided] = {}
        self.accused: list[Message] = []


def name(party: int) -> str:
    if party >= 0:
        return f"server {party}"
    return f"client {~party}"
