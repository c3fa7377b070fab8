"""A client's learning, from one round's result to the next upload.

Training runs in a thread, beside the loop that keeps the client's connections alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from fedrfq.consensus.events import Submit
from fedrfq.node.logs import log_event
from fedrfq.node.news import News
from fedrfq.node.participant import ClientAccuracies, Interrupted, Participant
from fedrfq.node.storage.client_history import ClientHistory, HistoryLine


class Learner:
    """Trains whenever there is a new result, and passes the upload on to `give`.

    Everything but the training and testing itself happens in the event loop. `accuracies` are those
    after the last round heard of. After each result it pauses for so many seconds.
    """

    def __init__(
        self,
        participant: Participant,
        history: ClientHistory,
        give: Callable[[Submit], None],
        pause_s: int = 0,
    ) -> None:
        self._participant = participant
        self._history = history
        self._give = give
        self._pause = timedelta(seconds=pause_s)
        # The round that this client was ready for before it was decided.
        self._ready = 0
        self._newest: News | None = None
        self._arrived = asyncio.Event()
        self._since = time.monotonic()
        self.accuracies: ClientAccuracies | None = None
        self.on_round: Callable[[HistoryLine], None] = lambda line: None
        self.on_pause: Callable[[datetime], None] = lambda until: None

    def hear(self, news: News) -> None:
        """Take the newest result, and give up training for an older one."""
        # In this order: the interrupted training looks at `_newest` to see whether to go on.
        self._newest = news
        self._participant.heard(news.round, news.counted)
        self._participant.interrupt()
        self._arrived.set()

    def interrupt(self) -> None:
        """Give up training that is under way."""
        self._participant.interrupt()

    async def learn(self, once: bool) -> News:
        """Train for round after round, always from the newest result, and return the last one.

        With `once`, stop at the first result after the one that learning started from.
        """
        first = await self._wait_after(-1)
        news = first
        while True:
            if news.round:
                await self._record(news)
            if news.last or (once and news is not first):
                return news
            await self._rest(news)
            self._since = time.monotonic()
            await self._train(news)
            news = await self._wait_after(news.round)

    async def _wait_after(self, round_: int) -> News:
        while self._newest is None or self._newest.round <= round_:
            self._arrived.clear()
            await self._arrived.wait()
        return self._newest

    async def _rest(self, news: News) -> None:
        """Wait until the pause after the last result is over, or a newer one is here.

        Who was away when a result came does not know when the pause began, and does not wait: an
        upload that is early waits for the others.
        """
        now = datetime.now(UTC)
        # Not longer than the pause, if the clock was set back.
        rest = min(self._pause, (self._history.at or now - self._pause) + self._pause - now)
        if rest <= timedelta():
            return
        log_event("pausing", until=(now + rest).isoformat(timespec="seconds"))
        self.on_pause(now + rest)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wait_after(news.round), rest.total_seconds())

    async def _train(self, news: News) -> None:
        """Train for the round after this result, unless a newer one arrives first."""
        number = news.round + 1
        if not self._participant.takes_part(number):
            log_event("not selected for this round", round=number)
            self._ready = number
            return
        # An interrupt may be left over from before this training began, so being interrupted does
        # not mean that there is a newer result: only `_newest` tells.
        while self._newest is news:
            try:
                content = await asyncio.to_thread(self._participant.train, number, news.globals_)
            except Interrupted:
                continue
            self._give(Submit(number, content))
            self._ready = number
            return
        log_event("the round ended before training did", "warning", round=number)

    async def _record(self, news: News) -> None:
        """Test the model against this result, and write the round into the history."""
        accuracies = await asyncio.to_thread(
            self._participant.test, news.round, news.globals_, news.public
        )
        self.accuracies = accuracies
        # The losses belong to the round the client trained in last, if it did in this one.
        losses = None
        if self._participant.round == news.round:
            losses = self._participant.losses
        line = HistoryLine(
            round=news.round,
            accuracy=accuracies.head,
            prototype_accuracy=accuracies.prototype,
            prototype_accuracy_own=accuracies.prototype_own,
            loss=losses and losses.total,
            loss_classification=losses and losses.classification,
            loss_prototype=losses and losses.prototype,
            verdict=news.verdict,
            score=news.score,
            seconds=time.monotonic() - self._since,
            weight=news.weight,
            reason=news.reason,
            accuracy_combined=accuracies.combined,
            accuracy_all=accuracies.accuracy_all,
            accuracy_held=accuracies.accuracy_held,
            accuracy_unheld=accuracies.accuracy_unheld,
            at=datetime.now(UTC).isoformat() if self._ready == news.round else "",
        )
        self._history.write(line)
        log_event("round completed", "info", **line.facts())
        self.on_round(line)
