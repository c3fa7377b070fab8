"""The samples that clients hold, in memory: each image once, however many clients and runs share it."""

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
    """Samples (x normalised), and which of them each client holds; rows are padded to the longest."""

    x: Tensor
    y: Tensor
    index_KN: Tensor
    counts: tuple[int, ...]
    black_C: Tensor | None = (
        None  # if set, training crops and flips the images, padded with this colour
    )

    def weight_KN(self) -> Tensor:
        """1 where a client's row has a sample, 0 where it is padding."""
        slots = torch.arange(self.index_KN.shape[1], device=self.x.device)
        return (slots < torch.tensor(self.counts, device=self.x.device)[:, None]).float()

    def of(self, rows: Sequence[int]) -> ClientData:
        """Those of some clients."""
        counts = tuple(self.counts[row] for row in rows)
        return replace(self, index_KN=self.index_KN[list(rows)][:, : max(counts)], counts=counts)

    def trimmed(self, most: int) -> ClientData:
        """The first `most` samples of each client."""
        counts = tuple(min(count, most) for count in self.counts)
        return replace(self, index_KN=self.index_KN[:, : max(counts)], counts=counts)


def client_data(
    partitions: Sequence[Partition],
    labels: Sequence[Ints],
    dataset: Dataset,
    augment: bool,
    device: torch.device,
) -> tuple[ClientData, ClientData]:
    """What the clients of some runs train on, by the labels each believes, and are tested on; run after run."""
    trains = [index for partition in partitions for index in partition.train]
    train = _held(trains, labels, dataset.train_x, dataset, device)
    x = dataset.test_x
    y = dataset.test_y
    held_out_from = len(dataset.test_y)
    if any(partition.held_out for partition in partitions):
        x = np.concatenate([x, dataset.train_x])
        y = np.concatenate([y, dataset.train_y])
    tests = [
        index + held_out_from * partition.held_out
        for partition in partitions
        for index in partition.test
    ]
    if augment:
        black_C = (
            normalised(torch.zeros(dataset.shape[0], 1, 1), dataset.mean, dataset.std)
            .flatten()
            .to(device)
        )
    else:
        black_C = None
    return replace(train, black_C=black_C), _held(
        tests, [y[index] for index in tests], x, dataset, device
    )


def _held(
    indices: Sequence[Ints],
    labels: Sequence[Ints],
    x: NDArray[np.uint8],
    dataset: Dataset,
    device: torch.device,
) -> ClientData:
    """Each picture once for every label that somebody gives it."""
    pairs = np.concatenate(indices) * len(dataset.classes) + np.concatenate(labels)
    used, inverse = np.unique(pairs, return_inverse=True)
    counts = tuple(len(index) for index in indices)
    rows = np.zeros((len(indices), max(counts)), np.int64)
    for row, part in zip(rows, np.split(inverse, np.cumsum(counts)[:-1]), strict=True):
        row[: len(part)] = part
    index, y = np.divmod(used, len(dataset.classes))
    images = normalised(torch.from_numpy(x[index]), dataset.mean, dataset.std)
    return ClientData(
        images.to(device), torch.from_numpy(y).to(device), torch.from_numpy(rows).to(device), counts
    )


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Images of values 0 to 255 as models take them: less the data's mean, over its deviation, channel by channel."""
    mean_C11, std_C11 = (torch.tensor(moment)[:, None, None] * 255 for moment in (mean, std))
    return (pixels.float() - mean_C11) / std_C11
