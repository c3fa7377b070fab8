"""Deal samples to client after client, by counts of each class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.errors import UserError


class Exhausted(Exception):
    """No samples are left for one more client (or, of test samples, for this one)."""


@dataclass(frozen=True)
class Counts:
    """How many samples of each class a client gets.

    `train` says how many training samples of each class the next client takes of those left.
    `test` says the same of test samples, given the client's training counts and how many test
    samples there are of the classes it holds. Both raise Exhausted where there are too few.
    """

    train: Callable[[Ints], Ints]
    test: Callable[[Ints, Ints], Ints]


def deal(dataset: Dataset, clients: int, rng: Generator, share: bool, counts: Counts) -> Partition:
    """Deal client after client, so that the first clients are the same however many follow.

    With `share`, several clients may get the same training sample.
    """
    # The order of draws is part of the seed's meaning: stock, clients in turn, test samples.
    check_clients(clients)
    stock = _Stock(dataset.train_y, len(dataset.classes), share, rng)
    train = []
    train_counts = []
    for client in range(clients):
        try:
            count_J = counts.train(stock.left_J)
            train.append(stock.take(count_J))
        except Exhausted:
            raise UserError(
                f"{dataset.name} has samples for {client} of these {clients} clients "
                f"without repetition; lower clients to {client} or set partition.share = true"
            ) from None
        train_counts.append(count_J)
    return Partition.of(dataset, train, deal_test(dataset, train_counts, counts.test, rng))


def deal_test(
    dataset: Dataset, train_counts: list[Ints], test: Callable[[Ints, Ints], Ints], rng: Generator
) -> list[Ints]:
    """Return each client's test samples, as many of each class as `test` says (see `Counts`)."""
    # Clients may always share test samples.
    stock = _Stock(dataset.test_y, len(dataset.classes), True, rng)
    available = [stock.left_J * (count_J > 0) for count_J in train_counts]
    try:
        return [
            stock.take(test(count_J, available_J))
            for count_J, available_J in zip(train_counts, available, strict=True)
        ]
    except Exhausted:
        fewest = min(int(available_J.sum()) for available_J in available)
        raise UserError(
            f"a client's classes have only {fewest} test samples in {dataset.name}; "
            f"set partition.test_samples to at most {fewest}"
        ) from None


class _Stock:
    """Samples of every class in random order, handed out once each or, if shared, any time."""

    def __init__(self, labels: Ints, classes: int, share: bool, rng: Generator) -> None:
        self.piles = [rng.permutation(pile) for pile in piles(labels, classes)]
        self.left_J = np.array([len(pile) for pile in self.piles])
        self.share = share
        self.rng = rng

    def take(self, count_J: Ints) -> Ints:
        """Return as many samples of each class as `count_J` says, sorted."""
        if (count_J > self.left_J).any():
            raise Exhausted
        labels = np.flatnonzero(count_J)
        return np.sort(np.concatenate([self._take(label, count_J[label]) for label in labels]))

    def _take(self, label: np.int64, count: int) -> Ints:
        if self.share:
            return self.rng.choice(self.piles[label], count, replace=False, shuffle=False)
        # From the end of the pile.
        self.left_J[label] -= count
        start = self.left_J[label]
        return self.piles[label][start : start + count]


def piles(labels: Ints, number: int) -> list[Ints]:
    """Return the indices of each label from 0 to `number` − 1."""
    ends = np.cumsum(np.bincount(labels, minlength=number))
    return np.split(np.argsort(labels, kind="stable"), ends[:-1])


def check_clients(clients: int) -> None:
    """Check that there is a client."""
    if clients < 1:
        raise UserError(f"clients = {clients} must be at least 1")


def check_samples(dataset: Dataset, samples: int) -> None:
    """Check that the dataset has as many training samples as one client is to hold."""
    available = len(dataset.train_y)
    if samples > available:
        raise UserError(
            f"partition.samples = {samples}, but {dataset.name} has {available} training samples; "
            f"set partition.samples to at most {available}"
        )
