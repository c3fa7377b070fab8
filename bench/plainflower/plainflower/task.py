"""Model, data and training of one client, in stock PyTorch.

The model is fedrfq's `cnn`, the data are a client's share of its partition.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedrfq import data, experiment
from fedrfq.data.client_data import normalised
from fedrfq.data.partition import Ints, Partition
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import deal

CLASSES = 10
VALUES = 50


class CNN(nn.Module):
    """The paper's CNN."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.drop2d = nn.Dropout2d()
        self.drop = nn.Dropout()
        self.fc1 = nn.Linear(320, VALUES)
        self.fc2 = nn.Linear(VALUES, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return feature vectors, which are the samples' prototypes, and logits."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop2d(self.conv2(x)), 2))
        c = F.relu(self.fc1(x.flatten(1)))
        return c, self.fc2(self.drop(c))


class Share(Dataset[tuple[Tensor, int]]):
    """Some samples of a dataset; images are normalised when they are read."""

    def __init__(self, dataset: data.Dataset, index: Ints, test: bool) -> None:
        self._x = dataset.test_x if test else dataset.train_x
        self._y = dataset.test_y if test else dataset.train_y
        self._index = index
        self._moments = (dataset.mean, dataset.std)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        row = self._index[i]
        return normalised(torch.from_numpy(self._x[row]), *self._moments), int(self._y[row])


@cache
def everything(path: str) -> tuple[Experiment, data.Dataset, Partition]:
    """Return the experiment, its data and its partition, read once in each process."""
    settings = experiment.load(Path(path))
    dataset = data.load(settings.data.name)
    return settings, dataset, deal(settings, dataset)


def loaders(
    path: str, client: int
) -> tuple[DataLoader[tuple[Tensor, int]], DataLoader[tuple[Tensor, int]]]:
    """Return a client's samples, to train on and to test on."""
    settings, dataset, partition = everything(path)
    train = Share(dataset, partition.train[client], False)
    test = Share(dataset, partition.test[client], True)
    return DataLoader(train, settings.train.batch_size, shuffle=True), DataLoader(test, 64)


def train(
    model: CNN,
    loader: DataLoader[tuple[Tensor, int]],
    globals_JV: Tensor | None,
    settings: Experiment,
) -> None:
    """Train for a round, towards the global prototypes where there are any."""
    options = settings.train
    optimiser = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    model.train()
    for _ in range(options.epochs):
        for x, y in loader:
            c, logits = model(x)
            loss = F.cross_entropy(logits, y)
            if globals_JV is not None:
                loss = loss + settings.method.lam * F.mse_loss(c, globals_JV[y])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@torch.no_grad()
def class_means(model: CNN, loader: DataLoader[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return the mean prototype of each class, and the number of its samples."""
    sums_JV = torch.zeros(CLASSES, VALUES)
    counts_J = torch.zeros(CLASSES, dtype=torch.int64)
    model.eval()
    for x, y in DataLoader(loader.dataset, 64):
        sums_JV.index_add_(0, y, model(x)[0])
        counts_J += torch.bincount(y, minlength=CLASSES)
    return sums_JV / counts_J.clamp(min=1)[:, None], counts_J


@torch.no_grad()
def accuracy(model: CNN, loader: DataLoader[tuple[Tensor, int]]) -> float:
    """Return the accuracy in percent."""
    model.eval()
    right = sum(int((model(x)[1].argmax(1) == y).sum()) for x, y in loader)
    return 100 * right / len(loader.dataset)
