"""What the server app knows of the clients' samples, for its records alone. Where a dataset is dealt by the experiment, that
is how; where each client has its own, what its uploads and figures say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import deal
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.runs.session import described
from fedrfq.runs.snapshot import Share, shares


class SampleKnowledge(Protocol):
    @property
    def partition(self) -> Partition: ...

    def described(self) -> dict[str, Any]:
        """For environment.json."""

    def shares(self) -> list[Share]:
        """For partition.csv."""

    def learn(self, sent: Uploads, labels: Mapping[int, Ints]) -> None:
        """From what clients sent, and the labels of the samples they were tested on."""


class DealtSamples:
    """Of a dataset that is here too."""

    def __init__(self, experiment: Experiment) -> None:
        self.dataset: Dataset = data.load(experiment.data.name)
        self.partition = deal(experiment, self.dataset)

    def described(self) -> dict[str, Any]:
        return {"data": described(self.dataset), "partition": self.partition.realised}

    def shares(self) -> list[Share]:
        return shares(self.partition, self.dataset)

    def learn(self, sent: Uploads, labels: Mapping[int, Ints]) -> None:
        pass


class ReportedSamples:
    """Of samples that only the clients have. Until one is heard from, it counts as one with no class and a test sample."""

    def __init__(self, clients: int, classes: int) -> None:
        self._train_KJ = np.zeros((clients, classes), np.int64)
        self._test_KJ = np.zeros((clients, classes), np.int64)

    @property
    def partition(self) -> Partition:
        return Partition(
            tuple(map(_rows, self._train_KJ.sum(1))),
            tuple(_rows(max(test, 1)) for test in self._test_KJ.sum(1)),
            tuple(np.flatnonzero(train_J) for train_J in self._train_KJ),
        )

    def described(self) -> dict[str, Any]:
        return {"data": {}, "partition": {}}

    def shares(self) -> list[Share]:
        held = zip(*np.nonzero(self._train_KJ), strict=True)
        return [
            Share(int(k), int(j), int(self._train_KJ[k, j]), int(self._test_KJ[k, j]))
            for k, j in held
        ]

    def learn(self, sent: Uploads, labels: Mapping[int, Ints]) -> None:
        self._train_KJ[list(sent.clients)] = sent.counts_KJ
        for client, y_N in labels.items():
            self._test_KJ[client] = np.bincount(y_N, minlength=self._test_KJ.shape[1])


def _rows(number: int) -> Ints:
    """So many, of which nothing is known; without the memory that a client could claim by saying how many it has."""
    return np.broadcast_to(np.int64(0), number)
