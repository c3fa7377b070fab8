"""The samples that clients hold, in memory: each image once, however many clients share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition


@dataclass(frozen=True)
class ClientData:
    """Normalised samples, and which of them each client holds.

    Row k of `index_KN` has client k's indices into `x` and `y`, padded to the longest row.
    """

    x: Tensor
    y: Tensor
    index_KN: Tensor
    counts: tuple[int, ...]
    # If set, training crops and flips the images, padded with this colour.
    black_C: Tensor | None = None

    def weight_KN(self) -> Tensor:
        """Return 1 where a client's row has a sample and 0 where it is padding."""
        slots = torch.arange(self.index_KN.shape[1], device=self.x.device)
        return (slots < torch.tensor(self.counts, device=self.x.device)[:, None]).float()

    def to(self, device: torch.device) -> ClientData:
        """Return the data on a device."""
        black_C = None if self.black_C is None else self.black_C.to(device)
        return ClientData(
            self.x.to(device), self.y.to(device), self.index_KN.to(device), self.counts, black_C
        )

    def of(self, rows: Sequence[int]) -> ClientData:
        """Return the data of the clients in `rows` only."""
        # Trimmed to the longest row that remains: padding costs time and memory.
        counts = tuple(self.counts[row] for row in rows)
        return replace(self, index_KN=self.index_KN[list(rows)][:, : max(counts)], counts=counts)

    def trimmed(self, most: int) -> ClientData:
        """Return the first `most` samples of each client."""
        counts = tuple(min(count, most) for count in self.counts)
        return replace(self, index_KN=self.index_KN[:, : max(counts)], counts=counts)


def client_data(
    partitions: Sequence[Partition],
    labels: Sequence[Ints],
    dataset: Dataset,
    augment: bool,
    device: torch.device,
) -> tuple[ClientData, ClientData]:
    """Return what the clients of one or more runs train on and are tested on, run after run.

    `labels` has the labels that each client believes its training samples to have; a poisoning
    client's are not the dataset's.
    """
    train_indices = [index for partition in partitions for index in partition.train]
    train = _held(train_indices, labels, dataset.train_x, dataset, device)
    if augment:
        black_C11 = normalised(torch.zeros(dataset.shape[0], 1, 1), dataset.mean, dataset.std)
        train = replace(train, black_C=black_C11.flatten().to(device))
    return train, tests_of(partitions, dataset, device)


def tests_of(partitions: Sequence[Partition], dataset: Dataset, device: torch.device) -> ClientData:
    """Return what the clients of one or more runs are tested on, run after run."""
    test_x = dataset.test_x
    test_y = dataset.test_y
    # Held-out samples are training samples: those are put behind the test samples.
    offset = len(dataset.test_y)
    if any(partition.held_out for partition in partitions):
        test_x = np.concatenate([test_x, dataset.train_x])
        test_y = np.concatenate([test_y, dataset.train_y])
    test_indices = [
        index + offset * partition.held_out for partition in partitions for index in partition.test
    ]
    test_labels = [test_y[index] for index in test_indices]
    return _held(test_indices, test_labels, test_x, dataset, device)


def _held(
    indices: Sequence[Ints],
    labels: Sequence[Ints],
    x: NDArray[np.uint8],
    dataset: Dataset,
    device: torch.device,
) -> ClientData:
    """Return the clients' samples, each image stored once for every label somebody gives it."""
    # An image and a label as one number, so that one call of unique finds the distinct pairs.
    pairs = np.concatenate(indices) * len(dataset.classes) + np.concatenate(labels)
    used, inverse = np.unique(pairs, return_inverse=True)
    counts = tuple(len(index) for index in indices)
    index_KN = np.zeros((len(indices), max(counts)), np.int64)
    for row, own in zip(index_KN, np.split(inverse, np.cumsum(counts)[:-1]), strict=True):
        row[: len(own)] = own
    image, y = np.divmod(used, len(dataset.classes))
    images = normalised(torch.from_numpy(x[image]), dataset.mean, dataset.std)
    return ClientData(
        images.to(device),
        torch.from_numpy(y).to(device),
        torch.from_numpy(index_KN).to(device),
        counts,
    )


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return images of values 0 to 255 as models take them, normalised channel by channel.

    `mean` and `std` are the data's, of values scaled to [0, 1].
    """
    mean_C11 = torch.tensor(mean)[:, None, None] * 255
    std_C11 = torch.tensor(std)[:, None, None] * 255
    return (pixels.float() - mean_C11) / std_C11
