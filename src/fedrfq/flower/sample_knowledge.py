"""What the server app knows of the clients' samples, for its records alone.

Where the experiment deals a dataset, it knows the partition. Where each client has its own samples,
it knows what the clients' uploads and figures say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import deal
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.runs.session import described
from fedrfq.runs.snapshot import Share, shares


class SampleKnowledge(Protocol):
    """The samples of all clients, as far as the server app knows them."""

    @property
    def partition(self) -> Partition:
        """Who holds which samples."""

    @property
    def dataset(self) -> Dataset | None:
        """The dataset that was dealt; None where each client has its own samples."""

    def described(self) -> dict[str, Any]:
        """Return what environment.json says of the data."""

    def shares(self) -> list[Share]:
        """Return the rows of partition.csv."""

    def learn(self, sent: Uploads, labels: Mapping[int, Ints]) -> None:
        """Take in a round's uploads, and the labels of the clients' test samples."""


class DealtSamples:
    """Samples of a dataset that is available here too, dealt by the experiment."""

    def __init__(self, experiment: Experiment) -> None:
        self.dataset: Dataset = experiment.data.load()
        self.partition = deal(experiment, self.dataset)

    def described(self) -> dict[str, Any]:
        """Return the dataset's name and hash, and how it was dealt."""
        return {"data": described(self.dataset), "partition": self.partition.realised}

    def shares(self) -> list[Share]:
        """Return how many samples of each class each client has."""
        return shares(self.partition, self.dataset)

    def learn(self, sent: Uploads, labels: Mapping[int, Ints]) -> None:
        """Do nothing: the partition is known."""


class ReportedSamples:
    """Samples that only the clients have.

    Until a client is heard from, it counts as one with no classes and one test sample.
    """

    dataset = None

    def __init__(self, clients: int, classes: int) -> None:
        self._train_KJ = np.zeros((clients, classes), np.int64)
        self._test_KJ = np.zeros((clients, classes), np.int64)

    @property
    def partition(self) -> Partition:
        """As many samples as the clients reported, without saying which."""
        return Partition(
            tuple(map(_rows, self._train_KJ.sum(1))),
            tuple(_rows(max(test, 1)) for test in self._test_KJ.sum(1)),
            tuple(np.flatnonzero(train_J) for train_J in self._train_KJ),
        )

    def described(self) -> dict[str, Any]:
        """Return nothing: the data is unknown here."""
        return {"data": {}, "partition": {}}

    def shares(self) -> list[Share]:
        """Return how many samples of each class each client reported."""
        held = zip(*np.nonzero(self._train_KJ), strict=True)
        return [
            Share(int(k), int(j), int(self._train_KJ[k, j]), int(self._test_KJ[k, j]))
            for k, j in held
        ]

    def learn(self, sent: Uploads, labels: Mapping[int, Ints]) -> None:
        """Take the training samples from the uploads, and the test samples from the labels.

        An upload without any class says nothing. Rows after the classes are second moments.
        """
        counts_KJ = sent.counts_KJ[:, : self._train_KJ.shape[1]]
        said_K = counts_KJ.any(1)
        self._train_KJ[np.array(sent.clients, np.int64)[said_K]] = counts_KJ[said_K]
        for client, y_N in labels.items():
            self._test_KJ[client] = np.bincount(y_N, minlength=self._test_KJ.shape[1])


def _rows(number: int) -> Ints:
    """Return so many unknown rows, which take no memory: a client may claim any number."""
    return np.broadcast_to(np.int64(0), number)
