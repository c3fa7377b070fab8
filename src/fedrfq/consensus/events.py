"""What goes into a replica or a client, and what comes out: events and effects, and the application they serve.

A machine is `step(event) -> list[Effect]`. Its driver carries the effects out in their order; a `Persist` is on disk before
the effect after it is begun, so nothing is ever said that a restart forgets.

What there is most of is a class with slots, made in half the time of a named tuple; nothing changes it once it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from fedrfq.consensus.messages import Certificate, Message, Upload


class Timer(StrEnum):
    DEADLINE = "deadline"
    VIEW = "view"
    RESEND = "resend"


DEADLINE, VIEW, RESEND = Timer  # quicker than Timer.VIEW


class Start(NamedTuple):
    """The first event, also after a restart."""


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """From the peer at the other end of the channel: a server's number, or ~k for client k."""

    peer: int
    message: Message


class Expired(NamedTuple):
    timer: Timer


class Submit(NamedTuple):
    """A client has its share of a round ready, or a server something to move in it."""

    round: int
    content: bytes


class LeftOut(NamedTuple):
    """A client's owner has read in a round's certified verdicts that the client's upload did not count."""

    round: int


Event = Start | Received | Expired | Submit | LeftOut


@dataclass(slots=True, unsafe_hash=True)
class Send:
    to: int
    message: Message


@dataclass(slots=True, unsafe_hash=True)
class Broadcast:
    """To all servers but oneself."""

    message: Message


class Publish(NamedTuple):
    """To the clients this server serves (`roster.served`)."""

    message: Message


@dataclass(slots=True, unsafe_hash=True)
class Persist:
    """Append to what a restart will be given, durably."""

    message: Message


class SetTimer(NamedTuple):
    """Start, or start anew, the one timer of this name; none: stop it."""

    timer: Timer
    delay_ms: int | None


class Decided(NamedTuple):
    """A round is over. A server that only has the certificate yet says so without the outcome, and again with it once it
    is fetched; the lists are missing where it saw none. It is not said again after a restart: a driver that died in between
    finds the certificate in the log."""

    certificate: Certificate
    outcome: Outcome | None
    lists: tuple[Message, ...]


class Accused(NamedTuple):
    """Somebody provably misbehaved; the message is an EVIDENCE."""

    evidence: Message


class Waiting(NamedTuple):
    """The deadline has passed, and too few clients have sent."""

    held: int
    minimum: int


Effect = Send | Broadcast | Publish | Persist | SetTimer | Decided | Accused | Waiting


class Outcome(NamedTuple):
    """What the application makes of a round, in its own bytes."""

    globals_: bytes
    verdicts: bytes
    state: bytes


class Application(Protocol):
    """What is replicated: pure functions of bytes, the same on every server."""

    def start(self) -> Outcome:
        """Before the first round."""
        ...

    def refuses(self, upload: Upload) -> str | None:
        """Why an upload is not fit to be stored, by itself; none where it is."""
        ...

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        """A round's outcome from the uploads that count, by ascending client; after the clients' come servers' change proposals."""
        ...

    def over(self, outcome: Outcome) -> bool:
        """Whether the run ends with this outcome: no round comes after it."""
        ...
