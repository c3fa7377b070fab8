"""The server app: a courier between Flower's nodes and a committee. It trains nothing, signs nothing and decides nothing: it
hands signed uploads on, brings back what was certified, and writes down how it went.

One message to a node a round: with a round's result it is asked for what it finds with it, and for its uploads of the next.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrfq.committee.round_result import taken
from fedrfq.consensus.messages import Message, decode
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.files import toml
from fedrfq.flower.committee_gateway import CommitteeGateway, changed, letter
from fedrfq.flower.decided_round import DecidedRound, by_client
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.node_registry import PAUSE_S, NodeRegistry
from fedrfq.flower.options import AppOptions, opened
from fedrfq.flower.run_directory import FlowerRunDirectory
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.node.hosting import HOSTED

LOG = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run from where it stands to its last round. What a user can mend is one line in the log, and ends it as failed."""
    try:
        options = AppOptions.of(context.run_config)
        book, carrier = opened(options)
        LOG.info("fedrfq: %s", book.run.path)
        ServerRun(grid, options, book, carrier).finish()
    except UserError as error:
        LOG.error("fedrfq: %s", error)
        raise


class ServerRun:
    """The round loop."""

    def __init__(
        self, grid: Grid, options: AppOptions, book: FlowerRunDirectory, carrier: CommitteeGateway
    ) -> None:
        self._options = options
        self._book = book
        self._carrier = carrier
        self._roll = NodeRegistry(grid, book.experiment.clients, options.deadline_s)
        if carrier.federation:
            self._least = carrier.federation.timings.minimum
        else:
            self._least = 1
        self._text = toml.dump(book.experiment.table())
        self._began = time.monotonic()

    def finish(self) -> None:
        self._roll.gather(self._order(hello=True), self._options.patience_s)
        with _settled():
            while not self.step():
                pass
        result = self._book.finish()
        LOG.info(
            "fedrfq: accuracy %.2f after %d rounds: %s",
            result["accuracy_mean"],
            result["rounds"],
            result["run_dir"],
        )

    def step(self) -> bool:
        """The last result to the nodes, and their next uploads to the committee; whether no round is left."""
        book = self._book
        order = self._order()
        if order.train and changed(book.last):
            raise UserError(
                f"the federation was changed in round {book.round}, and this run is over: clients go on by `fedrfq client`, "
                f"once {HOSTED} is removed from their folders"
            )
        answers = self._asked(order)
        book.hear(answers)
        if order.round:
            _show(book.record(), book.experiment.rounds)
        if order.train:
            book.certify(self._carried(order.round + 1, answers))
        return not order.train

    def _order(self, hello: bool = False) -> RoundOrder:
        book = self._book
        federation = self._carrier.federation
        if federation:
            run = federation.roster.run.hex()
        else:
            run = ""
        train = book.round < book.experiment.rounds and not hello
        state = self._options.state or str(book.run.path.resolve() / "state")
        return RoundOrder(run, self._text, book.round, letter(book.last), train, hello, state)

    def _asked(self, order: RoundOrder) -> list[NodeAnswer]:
        """The nodes' answers: where they are to train, of so many clients as a round needs, or the run waits, or stops."""
        began = time.monotonic()
        hello = self._order(hello=True)
        answers = dict[int, NodeAnswer]()
        while True:
            answers |= self._roll.ask(order, hello)
            if (
                not order.train
                or (ready := self._ready(order.round + 1, answers.values())) >= self._least
            ):
                return list(answers.values())
            if self._options.patience_s and time.monotonic() - began > self._options.patience_s:
                raise UserError(self._too_few(ready, order.round + 1))
            time.sleep(PAUSE_S)

    def _ready(self, number: int, answers: Iterable[NodeAnswer]) -> int:
        """Clients that are done with a round: whose signed upload is here, whatever their node says; or, where nothing is
        exchanged, that trained."""
        federation = self._carrier.federation
        trained = [answer for answer in answers if answer.round == number]
        if federation is None:
            return sum(len(answer.trained) for answer in trained)
        return len(
            taken(Rules(federation.roster), federation.task, number, _uploads(trained)).clients
        )

    def _too_few(self, ready: int, number: int) -> str:
        found = f"{ready} clients trained round {number} within {self._options.patience_s:g} s, and it needs {self._least}"
        return f"{found}: start the nodes, and go on with resume='{self._book.run.path}'"

    def _carried(self, number: int, answers: list[NodeAnswer]) -> DecidedRound:
        trained = [answer for answer in answers if answer.round == number]
        uploads = _uploads(trained)
        agreed = self._carrier.carry(number, self._book.last, uploads)
        losses = {
            k: row
            for answer in trained
            for k, row in zip(answer.trained, answer.losses, strict=True)
        }
        now = time.monotonic()
        before = self._began
        self._began = now
        seconds = max((answer.seconds for answer in trained), default=0.0)
        return DecidedRound(
            number,
            uploads,
            dict(sorted(losses.items())),
            agreed.last,
            agreed.report,
            seconds,
            now - before,
        )


@contextmanager
def _settled() -> Iterator[None]:
    """What is loaded by now stays: else the collector goes through all of it every few rounds, for half a round's time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _uploads(answers: Iterable[NodeAnswer]) -> dict[int, Message]:
    return by_client([upload for answer in answers for upload in uploaded(answer)])


def uploaded(answer: NodeAnswer) -> Iterable[Message]:
    """Of the clients that the node hosts; what is no message at all is left out."""
    for wire in answer.uploads:
        try:
            message = decode(wire)
        except Refused as error:
            LOG.warning("fedrfq: an upload is no message: %s", error)
            continue
        if message.author is not None and ~message.author in answer.trained:
            yield message


def _show(record: RoundRecord, rounds: int) -> None:
    """A line a round."""
    parts = [f"accuracy {record.accuracy_mean:.2f} ± {record.accuracy_std:.2f}"]
    if record.prototype_accuracy_mean is not None:
        parts.append(f"by prototypes {record.prototype_accuracy_mean:.2f}")
    parts += [f"{record.participants} clients", f"{len(record.filtered)} filtered"]
    if record.refused:
        client, why = next(iter(record.refused.items()))
        parts.append(f"{len(record.refused)} refused (client {client}: {why})")
    if record.view is not None:
        parts.append(f"view {record.view}")
    LOG.info(
        "fedrfq: round %d/%d: %s, %.1f s", record.round, rounds, ", ".join(parts), record.seconds
    )
