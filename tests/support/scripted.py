"""A driver between a machine that follows a script and a world that records what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fedrfq.consensus.events import Effect, Event
from fedrfq.consensus.messages import Certificate, Fetch, Kind, Message, PartKind, Record
from fedrfq.consensus.rules import Rules
from fedrfq.node.driver.driver import Driver
from fedrfq.node.storage.write_ahead_log import DiskFull
from support.cluster import roster

RULES = Rules(roster())
CERTIFICATE = Certificate(Kind.COMMIT, 0, Record(1, *[bytes(32)] * 7), ())


def word(round_: int = 1) -> Message:
    return RULES.unsigned(Fetch(round_, PartKind.CERT))


class Scripted:
    """A machine that answers each event as the test says, and remembers it."""

    def __init__(self, answer: Callable[[Event], list[Effect]]) -> None:
        self.answer = answer
        self.events: list[Event] = []

    def step(self, event: Event) -> list[Effect]:
        self.events.append(event)
        return self.answer(event)


class World:
    """A disk and wires that record, in order, what is asked of them."""

    def __init__(
        self, answer: Callable[[Event], list[Effect]] = lambda event: [], party: int = 0
    ) -> None:
        self.story: list[tuple[Any, ...]] = []
        self.here = {1, 2, 3, ~0, ~1, ~2, ~3}
        self.full = False
        self.machine = Scripted(answer)
        self.driver = Driver(self.machine, party, RULES.roster, self, self)

    def append(self, message: Message) -> None:
        self.story.append(("append", message))

    def flush(self) -> None:
        if self.full:
            raise DiskFull("no room")
        self.story.append(("flush",))

    def send(self, to: int, data: bytes) -> None:
        self.story.append(("send", to, data))

    def connected(self) -> set[int]:
        return self.here

    def drop(self, peer: int, why: str) -> None:
        self.story.append(("drop", peer))

    def sent(self) -> list[tuple[int, bytes]]:
        return [(what[1], what[2]) for what in self.story if what[0] == "send"]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def quiet() -> None:
    """Let the loop do everything that is due."""
    for _ in range(20):
        await asyncio.sleep(0)
