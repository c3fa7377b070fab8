"""A simulated party: its state machine, its log, and the crashes that are planned for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fedrfq.consensus.events import Decided, Effect, Event, Persist, Timer
from fedrfq.consensus.messages import Kind, Message


class Relay(NamedTuple):
    """A message that one faulty party sends over the channel of another faulty party, `origin`."""

    origin: int
    to: int
    message: Message


class RawBytes(NamedTuple):
    """Bytes from a faulty party that need not be a message.

    They arrive only where messages travel as bytes.
    """

    to: int
    data: bytes


Action = Effect | Relay | RawBytes


class SimulatedMachine(Protocol):
    """A state machine that the world can run: an honest party, or one that lies."""

    def step(self, event: Event) -> Sequence[Action]:
        """Take one event and return the actions to carry out, in order."""
        ...


class StepObserver(Protocol):
    """Sees every step of every party before the next, and raises a `Violation` if it is wrong."""

    def observe(self, node: SimulatedParty, event: Event, actions: Sequence[Action]) -> None:
        """Judge the actions that a party is about to carry out after an event."""
        ...


class Crash(NamedTuple):
    """A planned crash: the party carries out only some effects of a step and is then away.

    Without a `kind`, it crashes in step number `step`, after `effects` of that step's effects.
    With a `kind`, it crashes in the first step from `step` on that persists a message of this kind
    and of this `round` or a later one; `effects` then counts from that message on.
    A party that `forgets` comes back without its log, and knows that the log is lost.
    """

    party: int
    step: int
    effects: int
    away_ms: int
    kind: Kind | None = None
    round: int = 0
    forgets: bool = False

    def cut(self, actions: Sequence[Action]) -> int | None:
        """Return how many actions are done before the crash, or None if it is not due yet."""
        if self.kind is None:
            return self.effects
        for index, action in enumerate(actions):
            if isinstance(action, Persist) and self._strikes_at(action.message):
                return index + 1 + self.effects
        return None

    def _strikes_at(self, persisted: Message) -> bool:
        return persisted.body.kind == self.kind and persisted.body.round >= self.round


class SimulatedParty:
    """A party as the world runs it.

    Only the log outlives a crash, together with what the world has recorded about the party
    (`decided`, `accused`). `make_machine` builds the state machine from a log.
    """

    def __init__(
        self,
        party: int,
        make_machine: Callable[[list[Message]], SimulatedMachine],
        log: Iterable[Message],
        honest: bool,
    ) -> None:
        self.party = party
        self.make_machine = make_machine
        self.honest = honest
        self.log = list(log)
        self.machine = make_machine(self.log)
        self.up = True
        self.steps = 0
        self.crashes: list[Crash] = []
        # By timer, the sequence number of the event with which its latest setting fires.
        self.timers: dict[Timer, int] = {}
        self.decided: dict[int, Decided] = {}
        self.accused: list[Message] = []


def party_name(party: int) -> str:
    """Return "server 3" or "client 3" for a party's number."""
    if party >= 0:
        return f"server {party}"
    return f"client {~party}"
