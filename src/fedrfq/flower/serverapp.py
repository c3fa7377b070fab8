"""The server app: a courier between Flower's nodes and a committee.

It trains nothing, signs nothing and decides nothing. It hands signed uploads on, brings back what
was certified, and writes the records.

A node gets one message a round, which carries the result of the round before: the node measures
how well its clients do with that result, and answers with their uploads of the next round.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrfq.committee.round_result import signed_uploads
from fedrfq.consensus.messages import Message, decode
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.files import toml
from fedrfq.flower.committee_gateway import CommitteeGateway
from fedrfq.flower.decided_round import DecidedRound, by_client
from fedrfq.flower.messages import Losses, NodeAnswer, RoundOrder
from fedrfq.flower.node_registry import PAUSE_S, NodeRegistry
from fedrfq.flower.options import AppOptions, open_run
from fedrfq.flower.packed_result import has_successor, result_for_clients
from fedrfq.flower.run_directory import FlowerRunDirectory
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.node.hosting import HOSTED

LOG = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left; an error that a user can fix is one line in the log."""
    try:
        options = AppOptions.of(context.run_config)
        directory, gateway = open_run(options)
        LOG.info("fedrfq: %s", directory.run.path)
        ServerRun(grid, options, directory, gateway).finish()
    except UserError as error:
        LOG.error("fedrfq: %s", error)
        # Flower marks the run as failed.
        raise


class ServerRun:
    """The round loop of a run."""

    def __init__(
        self,
        grid: Grid,
        options: AppOptions,
        directory: FlowerRunDirectory,
        gateway: CommitteeGateway,
    ) -> None:
        self._options = options
        self._directory = directory
        self._gateway = gateway
        self._registry = NodeRegistry(grid, directory.experiment.clients, options.deadline_s)
        # The clients that a round needs at least.
        self._min_clients = 1
        self._run_id = ""
        if federation := gateway.federation:
            self._min_clients = federation.timings.minimum
            self._run_id = federation.roster.run.hex()
        self._experiment_text = toml.dump(directory.experiment.table())
        # Where simulated nodes keep their models.
        self._state = options.state or str(directory.run.path.resolve() / "state")
        # When the last round was decided, for the seconds of the next.
        self._began = time.monotonic()

    def finish(self) -> None:
        """Wait for the nodes, run all rounds that are left, and write the summary."""
        self._registry.gather(self._order(hello=True), self._options.patience_s)
        with _frozen():
            while not self.step():
                pass
        result = self._directory.finish(Path(self._state))
        LOG.info(
            "fedrfq: accuracy %.2f after %d rounds: %s",
            result["accuracy_mean"],
            result["rounds"],
            result["run_dir"],
        )

    def step(self) -> bool:
        """Send the last result to the nodes, and their uploads to the committee.

        Return whether that was the last step, in which the nodes only test their models.
        """
        directory = self._directory
        order = self._order()
        if order.train and has_successor(directory.last):
            raise UserError(
                f"the federation was changed in round {directory.round}, which ends this run: "
                f"remove {HOSTED} from the clients' folders and run them with `fedrfq client`"
            )
        # The answers tell of two rounds: how well the last result does, and the next uploads.
        answers = self._ask(order)
        directory.hear(answers)
        if order.round:
            _log_round(directory.record(), directory.experiment.rounds)
        if order.train:
            directory.certify(self._decide(order.round + 1, answers))
        return not order.train

    def _order(self, hello: bool = False) -> RoundOrder:
        directory = self._directory
        last = b""
        if not hello:
            last = result_for_clients(directory.last)
        return RoundOrder(
            run=self._run_id,
            experiment=self._experiment_text,
            round=directory.round,
            last=last,
            train=directory.round < directory.experiment.rounds and not hello,
            hello=hello,
            state=self._state,
        )

    def _ask(self, order: RoundOrder) -> list[NodeAnswer]:
        """Return the nodes' answers, repeating a training order until enough clients have trained.

        Raise a UserError if they have not when the patience is over.
        """
        began = time.monotonic()
        patience_s = self._options.patience_s
        hello = self._order(hello=True)
        answers = dict[int, NodeAnswer]()
        while True:
            # Nodes that have answered already say the same again, so nothing is lost.
            answers |= self._registry.ask(order, hello)
            if not order.train:
                return list(answers.values())
            ready = self._count_ready(order.round + 1, answers.values())
            if ready >= self._min_clients:
                return list(answers.values())
            if patience_s and time.monotonic() - began > patience_s:
                raise UserError(
                    f"{ready} clients trained round {order.round + 1} within {patience_s:g} s, "
                    f"but it needs {self._min_clients}: start the nodes, and continue with "
                    f"resume='{self._directory.run.path}'"
                )
            time.sleep(PAUSE_S)

    def _count_ready(self, number: int, answers: Iterable[NodeAnswer]) -> int:
        """Count the clients that are done with a round.

        Those are the clients whose valid signed upload is here, whatever their node says. Where
        nothing is exchanged, they are those that trained.
        """
        federation = self._gateway.federation
        trained = [answer for answer in answers if answer.round == number]
        if federation is None:
            return sum(len(answer.trained) for answer in trained)
        rules = Rules(federation.roster)
        return len(signed_uploads(rules, federation.task, number, _uploads(trained)).clients)

    def _decide(self, number: int, answers: list[NodeAnswer]) -> DecidedRound:
        """Carry the uploads to the committee, and return the round that it decided."""
        trained = [answer for answer in answers if answer.round == number]
        uploads = _uploads(trained)
        agreed = self._gateway.carry(number, self._directory.last, uploads)
        losses: dict[int, Losses] = {}
        for answer in trained:
            losses |= zip(answer.trained, answer.losses, strict=True)
        began = self._began
        self._began = time.monotonic()
        return DecidedRound(
            round=number,
            uploads=uploads,
            losses=dict(sorted(losses.items())),
            last=agreed.last,
            report=agreed.report,
            # Nodes train at the same time, so the slowest counts.
            seconds_train=max((answer.seconds for answer in trained), default=0.0),
            seconds=self._began - began,
        )


@contextmanager
def _frozen() -> Iterator[None]:
    """Exempt what is loaded by now from garbage collection.

    Otherwise the collector walks through all of it every few rounds, which takes half a round.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _uploads(answers: Iterable[NodeAnswer]) -> dict[int, Message]:
    return by_client([upload for answer in answers for upload in uploaded(answer)])


def uploaded(answer: NodeAnswer) -> Iterable[Message]:
    """Yield the uploads of clients that the node hosts; others, and garbage, are left out."""
    for wire in answer.uploads:
        try:
            message = decode(wire)
        except Refused as error:
            LOG.warning("fedrfq: dropped an upload that is not a message: %s", error)
            continue
        # The author of a client's message is the complement of its number.
        if message.author is not None and ~message.author in answer.trained:
            yield message


def _log_round(record: RoundRecord, rounds: int) -> None:
    """Log a line that says how a round went."""
    parts = [f"accuracy {record.accuracy_mean:.2f} ± {record.accuracy_std:.2f}"]
    if record.prototype_accuracy_mean is not None:
        parts.append(f"by prototypes {record.prototype_accuracy_mean:.2f}")
    if record.accuracy_all is not None:
        parts.append(f"on all classes {record.accuracy_all:.2f}")
    parts += [f"{record.participants} clients", f"{len(record.filtered)} filtered"]
    if record.reasons:
        client, why = next(iter(record.reasons.items()))
        parts.append(f"{len(record.reasons)} count for less (client {client}: {why})")
    if record.refused:
        client, why = next(iter(record.refused.items()))
        parts.append(f"{len(record.refused)} refused (client {client}: {why})")
    if record.view is not None:
        parts.append(f"view {record.view}")
    LOG.info(
        "fedrfq: round %d/%d: %s, %.1f s", record.round, rounds, ", ".join(parts), record.seconds
    )
