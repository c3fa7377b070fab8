"""From one round's result to the next upload: a client's learning, beside the loop that keeps its connections alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedrfq.consensus.events import Submit
from fedrfq.node.logs import say
from fedrfq.node.participant import Accuracies, Interrupted, Participant
from fedrfq.node.storage.client_history import ClientHistory, HistoryLine
from fedrfq.prototypes.fixed_point import Globals


@dataclass(frozen=True)
class News:
    """A round's certified result; round 0 is before the first. The verdict is on this client's own upload."""

    round: int
    globals_: Globals
    verdict: str = ""
    score: int | None = None
    last: bool = False  # there is no round after it


class Learner:
    """`give` takes what was trained. All but the training itself, which has a thread, happens in the loop."""

    def __init__(
        self, participant: Participant, diary: ClientHistory, give: Callable[[Submit], None]
    ) -> None:
        self._participant = participant
        self._diary = diary
        self._give = give
        self._newest: News | None = None
        self._came = asyncio.Event()
        self._since = time.monotonic()
        self.accuracies: Accuracies | None = None  # after the last round that was heard of
        self.on_round: Callable[[HistoryLine], None] = lambda line: None

    def hear(self, news: News) -> None:
        """The newest result: what is in training is stale."""
        self._newest = news
        self._participant.interrupt()
        self._came.set()

    async def learn(self, once: bool) -> News:
        """Train round after round, always from the newest result, until the last one (`once`: the next one) is heard of."""
        began = news = await self._later(-1)
        while True:
            if news.round:
                await self._write_down(news)
            if news.last or (once and news is not began):
                return news
            self._since = time.monotonic()
            await self._train(news)
            news = await self._later(news.round)

    async def _later(self, round_: int) -> News:
        while self._newest is None or self._newest.round <= round_:
            self._came.clear()
            await self._came.wait()
        return self._newest

    async def _train(self, news: News) -> None:
        """Towards the round after the news, unless there are newer ones before it is done."""
        number = news.round + 1
        if not self._participant.takes_part(number):
            say("not drawn for this round", round=number)
            return
        while self._newest is news:
            try:
                content = await asyncio.to_thread(self._participant.train, number, news.globals_)
            except Interrupted:
                continue
            self._give(Submit(number, content))
            return
        say("the round was over before training was", "warning", round=number)

    async def _write_down(self, news: News) -> None:
        self.accuracies = found = await asyncio.to_thread(self._participant.test, news.globals_)
        if self._participant.round == news.round:
            losses = self._participant.losses
        else:
            losses = None
        line = HistoryLine(
            round=news.round,
            accuracy=found.head,
            prototype_accuracy=found.prototype,
            prototype_accuracy_own=found.prototype_own,
            loss=losses and losses.total,
            loss_classification=losses and losses.classification,
            loss_prototype=losses and losses.prototype,
            verdict=news.verdict,
            score=news.score,
            seconds=time.monotonic() - self._since,
        )
        self._diary.write(line)
        say("round", "info", **line.facts())
        self.on_round(line)
