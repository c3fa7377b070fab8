"""A client that takes its statistics back, and does nothing else.

It has no data and trains nothing. From its request on, a client's folder is marked: nobody starts
the client again by accident, which would send new statistics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fedrfq.consensus.events import Submit
from fedrfq.errors import UserError
from fedrfq.federation.public_task import PublicTask
from fedrfq.federation.retained import is_withdrawal, withdrawal
from fedrfq.files.atomic import write_atomically
from fedrfq.node.news import News

FORGOTTEN = "forgotten.txt"


class Leaver:
    """Sends a withdrawal round after round, until one has counted.

    A round may leave it out, or the client may have signed another upload before it was stopped.
    """

    def __init__(self, member: int, public: PublicTask, give: Callable[[Submit], None]) -> None:
        self._member = member
        self._public = public
        self._give = give
        self._newest: News | None = None
        self._arrived = asyncio.Event()
        self.forgotten = False

    def hear(self, news: News) -> None:
        """Take the newest result."""
        self._newest = news
        self._arrived.set()

    def interrupt(self) -> None:
        """Do nothing: there is no training to interrupt."""

    async def learn(self, once: bool) -> News:
        """Return the result of the round in which the withdrawal counted, or of the run's last."""
        news = await self._wait_after(-1)
        while not is_withdrawal(news.counted) and not news.last:
            number = news.round + 1
            self._give(Submit(number, withdrawal(number, self._member, self._public)))
            news = await self._wait_after(news.round)
        self.forgotten = is_withdrawal(news.counted)
        return news

    async def _wait_after(self, round_: int) -> News:
        while self._newest is None or self._newest.round <= round_:
            self._arrived.clear()
            await self._arrived.wait()
        return self._newest


def mark(folder: Path, text: str) -> None:
    """Say in a client's folder that it wants to be forgotten, or that it is."""
    write_atomically(folder / FORGOTTEN, f"{text}\n".encode())


def check_unmarked(folder: Path) -> None:
    """Raise a UserError if the client has asked to be forgotten."""
    path = folder / FORGOTTEN
    if path.exists():
        raise UserError(
            f"{folder} has asked to be forgotten: `fedrfq forget {folder}` completes that; to take"
            f" part again, remove {path}"
        )
