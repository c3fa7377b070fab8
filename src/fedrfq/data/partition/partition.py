"""The partition of a dataset: which training and test samples each client holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedrfq.data.dataset import Dataset
from fedrfq.errors import UserError

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Each client's training and test samples, and the classes among its training samples.

    All are sorted. Every test sample is of a class that its client holds. `test` indexes the
    dataset's test arrays; with `held_out` it indexes the training arrays instead, and no client
    trains on its test samples.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    classes: tuple[Ints, ...]
    held_out: bool = False

    @staticmethod
    def of(
        dataset: Dataset, train: Sequence[Ints], test: Sequence[Ints], held_out: bool = False
    ) -> Partition:
        """Return the partition with these samples."""
        classes = tuple(np.unique(dataset.train_y[indices]) for indices in train)
        return Partition(tuple(train), tuple(test), classes, held_out)

    def only(self, clients: Sequence[int]) -> Partition:
        """Return the part of some clients."""
        return Partition(
            tuple(self.train[client] for client in clients),
            tuple(self.test[client] for client in clients),
            tuple(self.classes[client] for client in clients),
            self.held_out,
        )

    def validated(self, share: float, y: Ints, rng: Generator) -> Partition:
        """Return a partition that is tested on held-back training samples.

        Each client holds back `share` of its training samples of each class; `y` has the labels of
        the training samples.
        """
        held_back = [_held_back(own, share, y, rng) for own in self.train]
        pairs = zip(self.train, held_back, strict=True)
        train = tuple(np.setdiff1d(own, held) for own, held in pairs)
        for client, (own, held) in enumerate(zip(train, held_back, strict=True)):
            # A class that is tested must still be trained on.
            if not len(held) or set(y[held]) - set(y[own]):
                raise UserError(
                    f"validation = {share} leaves client {client} nothing to train on or to test: "
                    "change it, or give clients more samples of each class"
                )
        test = tuple(np.sort(held) for held in held_back)
        return Partition(train, test, self.classes, held_out=True)

    @property
    def realised(self) -> dict[str, float | bool]:
        """Statistics of the partition as it was drawn.

        Mean and standard deviation of the classes per client, the fewest and most training samples
        of a client, and whether clients share any.
        """
        classes = [len(held) for held in self.classes]
        sizes = [len(train) for train in self.train]
        return {
            "classes_mean": float(np.mean(classes)),
            "classes_std": float(np.std(classes)),
            "samples_min": min(sizes),
            "samples_max": max(sizes),
            "shared": len(np.unique(np.concatenate(self.train))) < sum(sizes),
        }


def _held_back(own: Ints, share: float, y: Ints, rng: Generator) -> Ints:
    """Draw a share of a client's samples of each class."""
    drawn = []
    for label in np.unique(y[own]):
        samples = own[y[own] == label]
        drawn.append(rng.permutation(samples)[: round(share * len(samples))])
    return np.concatenate(drawn)
