"""Clients that are people: each holds all samples of one or more writers, as in LEAF."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.dealing import check_clients, piles
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.errors import UserError
from fedrfq.files.options import check_ranges, option

# The share of a client's samples that it holds back where a client has no test samples.
HELD_OUT = 0.2


@dataclass(frozen=True)
class Groups:
    """Each client is `groups_per_client` writers, with all their samples.

    It is tested on the same writers' test samples. Where any client has none, every client instead
    holds back a fifth of its own samples, drawn at random.
    """

    groups_per_client: int = option(1, "Writers whose samples make up one client", "1 or more")

    def __post_init__(self) -> None:
        check_ranges("partition", self)

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples; equal generators give equal partitions."""
        check_clients(clients)
        train_piles, test_piles = _piles_by_writer(dataset)
        possible = len(train_piles) // self.groups_per_client
        if clients > possible:
            raise UserError(
                f"{dataset.name} has writers for {possible} such clients, not {clients}; "
                "lower clients or partition.groups_per_client"
            )
        order = rng.permutation(len(train_piles))[: clients * self.groups_per_client]
        writers_KG = order.reshape(clients, -1)
        train = _gather(train_piles, writers_KG)
        # Only test samples of classes that the client holds.
        test = []
        for own, candidates in zip(train, _gather(test_piles, writers_KG), strict=True):
            is_held = np.isin(dataset.test_y[candidates], dataset.train_y[own])
            test.append(candidates[is_held])
        if all(len(indices) for indices in test):
            return Partition.of(dataset, train, test)
        pairs = [_hold_out(dataset.train_y, own, rng) for own in train]
        kept, held_out = zip(*pairs, strict=True)
        return Partition.of(dataset, kept, held_out, held_out=True)


def _piles_by_writer(dataset: Dataset) -> tuple[list[Ints], list[Ints]]:
    """Return, for each writer of training samples, the indices of its train and test samples."""
    if dataset.train_groups is None or dataset.test_groups is None:
        raise UserError(
            f'{dataset.name} does not say who wrote what, which partition "groups" needs; '
            "give groups= to Dataset.from_arrays, or an .npz file with train_groups and "
            "test_groups, or a dataset in LEAF's format"
        )
    writers, train = np.unique(dataset.train_groups, return_inverse=True)
    # Test samples of writers who have no training samples belong to no client.
    known = np.flatnonzero(np.isin(dataset.test_groups, writers))
    test = np.searchsorted(writers, dataset.test_groups[known])
    return piles(train, len(writers)), [known[pile] for pile in piles(test, len(writers))]


def _gather(samples: list[Ints], writers_KG: Ints) -> list[Ints]:
    """Return, for each client, the samples of all its writers, sorted."""
    return [np.sort(np.concatenate([samples[writer] for writer in row])) for row in writers_KG]


def _hold_out(labels: Ints, indices: Ints, rng: Generator) -> tuple[Ints, Ints]:
    """Split one client's samples into training and test; every class keeps a training sample."""
    shuffled = rng.permutation(indices)
    _, first_of_class = np.unique(labels[shuffled], return_index=True)
    free = np.delete(shuffled, first_of_class)
    if not len(free):
        raise UserError(
            "a client has no two samples of the same class, so there is none to test on; "
            "raise partition.groups_per_client"
        )
    test = np.sort(free[: max(1, round(HELD_OUT * len(indices)))])
    return np.setdiff1d(indices, test), test
