"""What goes into a replica or a client and what comes out: events, effects, and the application.

Both are machines with one method, `step(event) -> list[Effect]`. Their driver carries out the
effects in order. A `Persist` is on disk before the next effect is begun, so a party never sends
anything that a restart makes it forget.

The most frequent events and effects are classes with slots, which are made in half the time of a
named tuple. Nothing changes them once they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from fedrfq.consensus.messages import Certificate, Message, Upload


class Timer(StrEnum):
    """The timers of a machine. It has one of each, and setting it again replaces it."""

    DEADLINE = "deadline"
    VIEW = "view"
    RESEND = "resend"


# Module constants for the hot paths: looking up Timer.VIEW takes longer than looking up VIEW.
DEADLINE, VIEW, RESEND = Timer


# Events


class Start(NamedTuple):
    """The machine begins, for the first time or after a restart. This is always the first event."""


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """A message arrived. `peer` is the party at the other end of the channel.

    Server s is party s and client k is party ~k. The peer need not be the message's author.
    """

    peer: int
    message: Message


class Expired(NamedTuple):
    """A timer ran out."""

    timer: Timer


class Submit(NamedTuple):
    """A client's upload of a round is ready."""

    round: int
    content: bytes


class Propose(NamedTuple):
    """A server proposes, in a round, the federation that is to follow this one."""

    round: int
    content: bytes


class LeftOut(NamedTuple):
    """The certified verdicts of a round show that this client's upload did not count."""

    round: int


Event = Start | Received | Expired | Submit | Propose | LeftOut


# Effects


@dataclass(slots=True, unsafe_hash=True)
class Send:
    """Send a message to one party."""

    to: int
    message: Message


@dataclass(slots=True, unsafe_hash=True)
class Broadcast:
    """Send a message to all servers but oneself."""

    message: Message


class Publish(NamedTuple):
    """Send a message to the clients that this server serves (`roster.served`)."""

    message: Message


@dataclass(slots=True, unsafe_hash=True)
class Persist:
    """Append a message durably to the log that the machine is given after a restart."""

    message: Message


class SetTimer(NamedTuple):
    """Start or restart a timer; a delay of None stops it."""

    timer: Timer
    delay_ms: int | None


class Decided(NamedTuple):
    """A round is decided.

    A server that has the certificate but not yet the outcome reports the round without it, and
    again once it has fetched the outcome. The lists are empty where the server saw none. A
    decision is not reported again after a restart: a driver that died before it acted on the
    decision finds the certificate in the log.
    """

    certificate: Certificate
    outcome: Outcome | None
    lists: tuple[Message, ...]


class Accused(NamedTuple):
    """A party provably misbehaved; the message is an EVIDENCE."""

    evidence: Message


class Waiting(NamedTuple):
    """The deadline has passed, but too few clients have sent an upload to close the round."""

    held: int
    minimum: int


Effect = Send | Broadcast | Publish | Persist | SetTimer | Decided | Accused | Waiting


# The application


class Outcome(NamedTuple):
    """The result of a round, in the application's own bytes."""

    # In the order of `records.OUTCOME`.

    globals_: bytes
    verdicts: bytes
    state: bytes
    # Changes in few rounds, and may be long: it is stored and sent only when it has changed.
    public: bytes = b""
    # The federation that follows, which a quorum of servers proposed; mostly none.
    successor: bytes = b""


class Application(Protocol):
    """What is replicated: pure functions of bytes, whose results are the same on every server."""

    def start(self) -> Outcome:
        """Return the outcome that the first round starts from."""
        ...

    def refuses(self, upload: Upload) -> str | None:
        """Return why an upload, by itself, may not be stored; None if it may."""
        ...

    def refuses_successor(self, content: bytes) -> str | None:
        """Return why a federation cannot follow this one; None if it can."""
        ...

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        """Return a round's outcome.

        `before` is the previous round's outcome. The uploads are those that count, by ascending
        client. The successor is not for the application to decide: it leaves it empty.
        """
        ...
