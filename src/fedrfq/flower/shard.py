"""The clients of one node, trained and tested with our engine.

With `train.alone`, they are to the byte what they are in `fedrfq run`; otherwise the last bits of
floats may differ. A shard holds no models: these come and go program by program, so that memory is
bounded however many clients there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data, tests_of
from fedrfq.data.partition import Ints
from fedrfq.engine import counter_rng
from fedrfq.engine.engine import Engine, Program, home
from fedrfq.engine.threads import one_thread, threads
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.flower.messages import Floats, Losses, NodeFigures
from fedrfq.flower.public_shard import PublicShard
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import GlobalPrototypes, evaluate
from fedrfq.learning.evaluation import Tested
from fedrfq.learning.public.classifier import PublicClassifier
from fedrfq.learning.round_loop import (
    attackers,
    believed_labels,
    common_test,
    deal,
    held,
    own_means,
    participants,
    start,
    targets,
    tested,
)
from fedrfq.models.stacked import Params, stack
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.privacy.drawn_uploads import DrawnUploads
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, Uploads, encode

# The bytes of parameters in a program, of which training needs several times as many, and clients.
_MAX_BYTES = {"cpu": 1 << 26, "cuda": 1 << 29}
_MAX_CLIENTS = {"cpu": 64, "cuda": 4096}


@dataclass(frozen=True)
class ShardData:
    """The data of a node's clients: their rows of a dataset, and the labels that they believe."""

    local: LocalDataset
    labels: tuple[Ints, ...]

    @staticmethod
    def dealt(
        experiment: Experiment, clients: Sequence[int], dataset: Dataset, honest: bool
    ) -> ShardData:
        """Deal the clients their shares of the experiment's dataset.

        Unless all are `honest`, the experiment's attackers believe the labels it gives them.
        """
        partition = deal(experiment, dataset)
        malicious = [] if honest else attackers(experiment)
        labels = believed_labels(experiment, partition, malicious, dataset)
        # Attackers are chosen among all clients, so labels are made before clients are picked.
        common = common_test(experiment, partition, dataset)
        local = LocalDataset(dataset, partition.only(clients), common.only(clients))
        return ShardData(local, tuple(labels[client] for client in clients))

    @staticmethod
    def own(local: LocalDataset) -> ShardData:
        """Take one client's own samples, which are not the experiment's."""
        train_y = local.dataset.train_y
        return ShardData(local, tuple(train_y[index] for index in local.partition.train))


class TrainedProgram(NamedTuple):
    """A program after a round: its models, and for each client that trained its losses.

    `clipped` and `contents` are how many values were clipped in each upload, and what it contains.
    A client whose prototypes are not numbers has nothing to send, and is in neither.
    """

    params: Params
    losses: dict[int, Losses]
    clipped: dict[int, int]
    contents: dict[int, bytes]


class Shard:
    """The clients of a node, divided into `programs`: clients that are computed together.

    The clients of a program have the same model; with `train.alone` each has a program of its own.
    `drawn` keeps the uploads that have noise, where there is any.
    """

    def __init__(
        self,
        experiment: Experiment,
        clients: Sequence[int],
        data: ShardData,
        device: torch.device,
        drawn: DrawnUploads | None = None,
    ) -> None:
        self.experiment = experiment
        self.clients = tuple(clients)
        self.trains_on = device
        self.device = home(device)
        self.dataset = data.local.dataset
        partition = data.local.partition
        self._malicious = frozenset(attackers(experiment))
        self._rows = {client: row for row, client in enumerate(clients)}
        self._train_data, self._test_data = client_data(
            [partition], data.labels, self.dataset, experiment.data.augment, self.device
        )
        self._common_data = None
        if data.local.common is not None:
            self._common_data = tests_of([data.local.common], self.dataset, self.device)
        self._public = PublicShard(experiment, data.local, data.labels, self.device, drawn)
        self._held_KJ = held([partition], len(self.dataset.classes)).to(self.device)
        self.programs = self._divide()

    def start(self, clients: Sequence[int]) -> Params:
        """Return these clients' models before the first round, on the CPU."""
        return stack([start(self.experiment, client, self.dataset) for client in clients])

    def train(
        self, clients: Sequence[int], params: Params, number: int, globals_: Globals
    ) -> TrainedProgram:
        """Train a program in round `number`, given its models and the last global prototypes."""
        experiment = self.experiment
        who = [client for client in participants(experiment, number) if client in clients]
        engine = self._engine(clients)
        with one_thread():
            params = self._on_device(params)
            numbers_K = torch.tensor(list(clients))
            keys_K = counter_rng.key(experiment.seed, numbers_K, number).to(self.device)
            known = self._targets(number - 1, globals_)
            guide = self._on_device(experiment.method.guide(number, known, params))
            if experiment.method.own_means:
                guide |= own_means(engine, params, len(self.dataset.classes), number - 1)
            rows = [clients.index(client) for client in who]
            trained, losses_K3 = engine.train(params, guide, keys_K, rows)
            losses = dict(zip(who, map(_losses, losses_K3.tolist()), strict=True))
            self._check_finite("loss", who, losses_K3, number)
            clipped, contents = self._uploads(engine, clients, who, trained, number)
            return TrainedProgram(trained, losses, clipped, contents)

    def classifiers(self, number: int, known: Globals | None) -> list[PublicClassifier]:
        """Return what all clients make of the statistics on a public map, as known after a round.

        There are none without a map, and in rounds in which clients are not tested on all classes.
        """
        if not self.experiment.public.used or not self._tests_all_classes(number):
            return []
        with threads(self.experiment.train.cores()):
            return self._public.classifiers(known)

    def test(
        self,
        clients: Sequence[int],
        params: Params,
        globals_: Globals,
        number: int,
        classifiers: Sequence[PublicClassifier] = (),
    ) -> NodeFigures:
        """Measure a program with the result of round `number`; `saturated_K` is left at 0.

        `classifiers` are those of all clients of the shard.
        """
        engine = self._engine(clients)
        with one_thread(), torch.no_grad():
            params = self._on_device(params)
            outputs = tested(engine, params)
            largest_K = outputs.logits_KNJ.abs().amax((1, 2))
            self._check_finite("prediction", clients, largest_K, number)
            known = self._targets(number, globals_)
            figures = self._figures(clients, outputs, known)
            if not self._tests_all_classes(number):
                return figures
            rows = [self._rows[client] for client in clients]
            public_KNJ = None
            if classifiers:
                public_KNJ = self._public.log_probabilities([classifiers[row] for row in rows])
            common_KF = self._common(engine, rows, params, known, public_KNJ)
            return replace(figures, common_KF=common_KF)

    def _tests_all_classes(self, number: int) -> bool:
        """Whether clients are tested on all classes after a round; not on data of their own."""
        if self._common_data is None or not any(self._common_data.counts):
            return False
        return self.experiment.at_checkpoint(number)

    def _common(
        self,
        engine: Engine,
        rows: list[int],
        params: Params,
        globals_: Globals,
        public_KNJ: Tensor | None,
    ) -> Floats:
        """Return what a program, whose clients are in these rows, knows of all classes."""
        assert self._common_data is not None
        known = GlobalPrototypes.of([globals_], self.device).rows([0 for _ in rows])
        tests = self._common_data.of(rows)
        held_KJ = self._held_KJ[rows]
        threshold_K = torch.full((len(rows),), self.experiment.public.threshold).to(self.device)
        figures = evaluate(engine, params, tests, held_KJ, known, threshold_K, public_KNJ)
        return figures.packed()

    def _targets(self, rounds: int, globals_: Globals) -> Globals:
        """Return the prototypes that clients use, given what was decided after so many rounds."""
        if not self.experiment.method.exchanges:
            # Then nothing was decided, and what came does not even say how many classes there are.
            globals_ = Globals.none(len(self.dataset.classes), self.experiment.prototype_size())
        return targets(self.experiment, rounds, globals_)

    def _figures(self, clients: Sequence[int], outputs: Tested, globals_: Globals) -> NodeFigures:
        held_KJ = self._held_KJ[[self._rows[client] for client in clients]]
        y_KN = outputs.y_KN
        weight_KN = outputs.weight_KN
        collapsed_K = metrics.collapsed(outputs.c_KND, outputs.p_KNV, weight_KN, held_KJ.sum(1))
        y_N = y_KN[weight_KN.bool()].cpu().numpy()
        # Without prototypes there is nothing to be near to.
        prototype_K = np.full(len(clients), np.nan)
        prototype_own_K = prototype_K
        distance_NJ = np.zeros((len(y_N), 0), np.float32)
        if self.experiment.method.predicts:
            prototypes_JV = torch.from_numpy(globals_.floats()).to(outputs.p_KNV)
            distance_KNJ = metrics.distances(outputs.p_KNV, prototypes_JV)
            present_KJ = torch.from_numpy(globals_.present_J).to(self.device).expand_as(held_KJ)
            nearest_KN = metrics.nearest(distance_KNJ, present_KJ)
            nearest_own_KN = metrics.nearest(distance_KNJ, held_KJ & present_KJ)
            prototype_K = metrics.accuracies(nearest_KN, y_KN, weight_KN)
            prototype_own_K = metrics.accuracies(nearest_own_KN, y_KN, weight_KN)
            distance_NJ = distance_KNJ[weight_KN.bool()].cpu().numpy()
        return NodeFigures(
            head_K=metrics.accuracies(outputs.logits_KNJ.argmax(-1), y_KN, weight_KN),
            prototype_K=prototype_K,
            prototype_own_K=prototype_own_K,
            collapsed_K=collapsed_K.long().cpu().numpy(),
            saturated_K=np.zeros(len(clients), np.int64),
            samples_K=weight_KN.sum(1).long().cpu().numpy(),
            y_N=y_N,
            distance_NJ=distance_NJ,
            common_KF=np.zeros((len(clients), 0)),
        )

    def _uploads(
        self, engine: Engine, clients: Sequence[int], who: list[int], params: Params, number: int
    ) -> tuple[dict[int, int], dict[int, bytes]]:
        """Return how many values of each client's upload were clipped, and what it contains."""
        if self.experiment.public.due(number):
            return self._statistics(who, number)
        if self.experiment.method.exchanges:
            return self._prototypes(engine, clients, who, params, number)
        if self.experiment.public.used:
            return self._nothing(who, number)
        return {}, {}

    def _statistics(self, who: list[int], number: int) -> tuple[dict[int, int], dict[int, bytes]]:
        """Return uploads of statistics on the public map."""
        clipped = {}
        contents = {}
        for client in who:
            upload = self._public.upload(client, self._rows[client], number)
            clipped[client] = upload.saturated
            (contents[client],) = upload.encoded(number)
        return clipped, contents

    def _nothing(self, who: list[int], number: int) -> tuple[dict[int, int], dict[int, bytes]]:
        """Return uploads without any class: servers must hear from clients in every round."""
        counts_J = np.zeros(len(self.dataset.classes), np.int64)
        values_JV = np.zeros((len(counts_J), self.experiment.prototype_size()), np.int64)
        precision = self.experiment.method.precision()
        contents = {
            client: encode(number, client, counts_J, values_JV, precision) for client in who
        }
        return dict.fromkeys(who, 0), contents

    def _prototypes(
        self, engine: Engine, clients: Sequence[int], who: list[int], params: Params, number: int
    ) -> tuple[dict[int, int], dict[int, bytes]]:
        """Return uploads of prototypes."""
        precision = self.experiment.method.precision()
        rows = [clients.index(client) for client in who]
        means_KJV, counts_KJ = engine.class_means(params, len(self.dataset.classes))
        values_KJV, clipped_K, missing_K = (
            column[rows] for column in quantise(means_KJV, precision)
        )
        sent_KJ = counts_KJ[rows].cpu().numpy()
        uploads = Uploads(tuple(who), sent_KJ, values_KJV, precision=precision)
        # Prototypes that are not numbers cannot be encoded: such a client sends nothing.
        uploads = uploads.only(missing_K == 0).checked()
        contents = dict(zip(uploads.clients, uploads.encoded(number), strict=True))
        clipped = {
            client: int(count)
            for client, count in zip(who, clipped_K, strict=True)
            if client in contents
        }
        return clipped, contents

    def _engine(self, clients: Sequence[int]) -> Engine:
        """Return a new engine: one that was used before keeps the models that it trained."""
        rows = [self._rows[client] for client in clients]
        experiment = self.experiment
        _, model = experiment.place(clients[0])
        program = Program(model, experiment.method, experiment.pool, experiment.train)
        train, test = self._train_data.of(rows), self._test_data.of(rows)
        return Engine(program, train, test, self.trains_on)

    def _divide(self) -> list[tuple[int, ...]]:
        """Return programs of neighbouring clients of one model, as large as memory allows."""
        if self.experiment.train.alone:
            return [(client,) for client in self.clients]
        programs: list[tuple[int, ...]] = []
        kind = self.device.type
        for _, group in groupby(self.clients, lambda client: self.experiment.place(client)[0]):
            alike = list(group)
            size = sum(p.numel() * p.element_size() for p in self.start(alike[:1]).values())
            largest = max(1, min(_MAX_BYTES[kind] // size, _MAX_CLIENTS[kind]))
            parts = np.array_split(alike, -(-len(alike) // largest))
            programs += [tuple(part.tolist()) for part in parts]
        return programs

    def _check_finite(self, what: str, clients: Sequence[int], values: Tensor, number: int) -> None:
        """Raise a UserError if an honest client's values are not numbers.

        A malicious client's may be: how it trains is its own business.
        """
        finite_K = values.view(len(values), -1).isfinite().all(1).tolist()
        for client, finite in zip(clients, finite_K, strict=True):
            if not finite and client not in self._malicious:
                raise UserError(
                    f"the {what} of client {client} is not a number in round {number}: "
                    "lower train.lr or method.lam"
                )

    def _on_device(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in named.items()}


def joined(parts: Sequence[NodeFigures]) -> NodeFigures:
    """Return the figures of several programs, one after the other."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return NodeFigures(*(np.concatenate(column) for column in columns))


def _losses(values: list[float]) -> Losses:
    total, classification, prototype = values
    return total, classification, prototype
