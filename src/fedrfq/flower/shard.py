"""The clients that one node hosts, trained and tested with our engine: to the byte what they are in `fedrfq run` with
`train.alone`, else but for the last bits of floats.

A shard holds no models. They come and go program by program, so that memory is bounded however many clients there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data
from fedrfq.data.partition import Ints, Partition
from fedrfq.engine import counter_rng
from fedrfq.engine.engine import Engine, Program
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.flower.messages import Row, TestFigures
from fedrfq.learning import metrics
from fedrfq.learning.evaluation import Tested
from fedrfq.learning.round_loop import (
    attackers,
    believed_labels,
    deal,
    held,
    participants,
    start,
    tested,
)
from fedrfq.models.stacked import Params, stack
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, Uploads

# Of a program at most: bytes of parameters, of which training needs several times as many, and clients.
_MOST_BYTES = {"cpu": 1 << 26, "cuda": 1 << 29}
_MOST_CLIENTS = {"cpu": 64, "cuda": 4096}


@dataclass(frozen=True)
class ShardData:
    """What some clients have: their rows of the partition, and the labels they believe."""

    holding: LocalDataset
    labels: tuple[Ints, ...]

    @staticmethod
    def dealt(
        experiment: Experiment, clients: Sequence[int], dataset: Dataset, honest: bool
    ) -> ShardData:
        """The clients' shares of the experiment; unless all are honest, its attackers have the labels it gives them."""
        whole = deal(experiment, dataset)
        train, test, classes = (
            tuple(rows[k] for k in clients) for rows in (whole.train, whole.test, whole.classes)
        )
        labels = believed_labels(
            experiment, whole, [] if honest else attackers(experiment), dataset
        )
        return ShardData(
            LocalDataset(dataset, Partition(train, test, classes, whole.held_out)),
            tuple(labels[k] for k in clients),
        )

    @staticmethod
    def own(holding: LocalDataset) -> ShardData:
        """Samples of one client that are not the experiment's."""
        return ShardData(
            holding, tuple(holding.dataset.train_y[index] for index in holding.partition.train)
        )


class TrainedProgram(NamedTuple):
    """A program after a round: its models, of the clients that trained their losses and how many values were cut, and what
    each has to send. One whose values are no numbers has nothing to send."""

    params: Params
    losses: dict[int, Row]
    cut: dict[int, int]
    contents: dict[int, bytes]


class Shard:
    """`programs` are the clients computed together: of one model each, and with `train.alone` one client each."""

    def __init__(
        self, experiment: Experiment, clients: Sequence[int], stock: ShardData, device: torch.device
    ) -> None:
        self.experiment = experiment
        self.clients = tuple(clients)
        self.device = device
        self.dataset = stock.holding.dataset
        partition = stock.holding.partition
        self._malicious = frozenset(attackers(experiment))
        self._rows = {client: row for row, client in enumerate(clients)}
        self._shares = client_data(
            [partition], stock.labels, self.dataset, experiment.data.augment, device
        )
        self._held_KJ = held([partition], len(self.dataset.classes)).to(device)
        self.programs = self._divided()

    def start(self, clients: Sequence[int]) -> Params:
        """Clients' models before the first round, on the CPU."""
        return stack([start(self.experiment, client, self.dataset) for client in clients])

    def train(
        self, clients: Sequence[int], params: Params, number: int, globals_: Globals
    ) -> TrainedProgram:
        """Round `number` of a program, given its models and the global prototypes of the round before."""
        who = [client for client in participants(self.experiment, number) if client in clients]
        with self.experiment.train.kernels():
            engine = self._engine(clients)
            own = self._on_device(params)
            keys_K = counter_rng.key(self.experiment.seed, torch.tensor(list(clients)), number).to(
                self.device
            )
            guide = self._on_device(self.experiment.method.guide(number, globals_, own))
            new, losses_K3 = engine.train(
                own, guide, keys_K, [clients.index(client) for client in who]
            )
            losses = dict(zip(who, map(_row, losses_K3.tolist()), strict=True))
            self._check("loss", who, losses_K3, number)
            if not self.experiment.method.exchanges:
                return TrainedProgram(new, losses, {}, {})
            return TrainedProgram(new, losses, *self._uploads(engine, clients, who, new, number))

    def test(
        self, clients: Sequence[int], params: Params, globals_: Globals, number: int
    ) -> TestFigures:
        """A program's figures with the result of round `number`; nothing is said of what was cut."""
        with self.experiment.train.kernels(), torch.no_grad():
            found = tested(self._engine(clients), self._on_device(params))
            self._check("prediction", clients, found.logits_KNJ.abs().amax((1, 2)), number)
            return self._figures(clients, found, globals_)

    def _figures(self, clients: Sequence[int], found: Tested, globals_: Globals) -> TestFigures:
        held_KJ = self._held_KJ[[self._rows[client] for client in clients]]
        head_K = metrics.accuracies(found.logits_KNJ.argmax(-1), found.y_KN, found.weight_KN)
        dead_K = (
            metrics.collapsed(found.c_KND, found.p_KNV, found.weight_KN, held_KJ.sum(1))
            .long()
            .cpu()
            .numpy()
        )
        samples_K = found.weight_KN.sum(1).long().cpu().numpy()
        nobody = np.zeros(len(clients), np.int64)
        y_N = found.y_KN[found.weight_KN.bool()].cpu().numpy()
        if not self.experiment.method.exchanges:
            unknown_K = np.full(len(clients), np.nan)
            nowhere = np.zeros((len(y_N), 0), np.float32)
            return TestFigures(
                head_K, unknown_K, unknown_K, dead_K, nobody, samples_K, y_N, nowhere
            )
        distance_KNJ = metrics.distances(
            found.p_KNV, torch.from_numpy(globals_.floats()).to(found.p_KNV)
        )
        present_KJ = torch.from_numpy(globals_.present_J).to(self.device).expand_as(held_KJ)
        guesses = [
            metrics.nearest(distance_KNJ, allowed_KJ)
            for allowed_KJ in (present_KJ, held_KJ & present_KJ)
        ]
        all_K, own_K = (metrics.accuracies(guess, found.y_KN, found.weight_KN) for guess in guesses)
        distance_NJ = distance_KNJ[found.weight_KN.bool()].cpu().numpy()
        return TestFigures(head_K, all_K, own_K, dead_K, nobody, samples_K, y_N, distance_NJ)

    def _uploads(
        self, engine: Engine, clients: Sequence[int], who: list[int], params: Params, number: int
    ) -> tuple[dict[int, int], dict[int, bytes]]:
        """How many values of each client were cut, and each one's message."""
        precision = self.experiment.method.precision()
        rows = [clients.index(client) for client in who]
        means_KJV, counts_KJ = engine.class_means(params, len(self.dataset.classes))
        values, cut, missing = (found[rows] for found in quantise(means_KJV, precision))
        finite = missing == 0
        sent = (
            Uploads(tuple(who), counts_KJ[rows].cpu().numpy(), values, precision=precision)
            .only(finite)
            .checked()
        )
        contents = dict(zip(sent.clients, sent.encoded(number), strict=True))
        return {
            client: int(n) for client, n in zip(who, cut, strict=True) if client in contents
        }, contents

    def _engine(self, clients: Sequence[int]) -> Engine:
        """Made anew every time: an engine keeps the models that it trained."""
        rows = [self._rows[client] for client in clients]
        (train, test) = self._shares
        e = self.experiment
        program = Program(e.place(clients[0])[1], e.method, e.pool, e.train)
        return Engine(program, train.of(rows), test.of(rows))

    def _divided(self) -> list[tuple[int, ...]]:
        """Clients of one model next to each other, as many as memory allows."""
        if self.experiment.train.alone:
            return [(client,) for client in self.clients]
        found: list[tuple[int, ...]] = []
        for _, group in groupby(self.clients, lambda client: self.experiment.place(client)[0]):
            alike = list(group)
            size = sum(p.numel() * p.element_size() for p in self.start(alike[:1]).values())
            most = max(
                1, min(_MOST_BYTES[self.device.type] // size, _MOST_CLIENTS[self.device.type])
            )
            found += [
                tuple(part.tolist()) for part in np.array_split(alike, -(-len(alike) // most))
            ]
        return found

    def _check(self, what: str, clients: Sequence[int], values: Tensor, number: int) -> None:
        """That honest clients' values are numbers; what becomes of a malicious one's training is its own affair."""
        finite_K = values.view(len(values), -1).isfinite().all(1).tolist()
        for client, finite in zip(clients, finite_K, strict=True):
            if not finite and client not in self._malicious:
                raise UserError(
                    f"the {what} of client {client} is not a number in round {number}: lower train.lr or method.lam"
                )

    def _on_device(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in named.items()}


def joined(parts: Sequence[TestFigures]) -> TestFigures:
    """Programs' figures, one after the other."""
    return TestFigures(
        *(
            np.concatenate(column)
            for column in zip(*(vars(part).values() for part in parts), strict=True)
        )
    )


def _row(values: list[float]) -> Row:
    total, classification, prototype = values
    return total, classification, prototype
