"""Whom the attacker asks about: a client's samples of a class, and as many that it does not hold.

In every shadow federation each client draws as many samples as it has from these candidates, so
that about half of the shadows have any given one. Classes and counts are as the client uploads
them: the attacker knows those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.leakage.roc import Bools

# Members, and as many others, that are asked about in a class of a client.
_MAX_TARGETS = 25


@dataclass(frozen=True)
class Candidates:
    """Samples of one client and class, of which the federations hold `members` each.

    Federation 0 is the run itself: it holds the first ones.
    """

    client: int
    label: int
    index_C: Ints
    members: int
    held_FC: Bools

    @property
    def targets_T(self) -> Ints:
        """Return the places of the candidates that the attacker asks about."""
        asked = min(self.members, len(self.index_C) - self.members, _MAX_TARGETS)
        return np.concatenate([np.arange(asked), self.members + np.arange(asked)])

    @property
    def member_FT(self) -> Bools:
        """Return which federations hold which targets."""
        held: Bools = self.held_FC[:, self.targets_T]
        return held


def candidates(
    dataset: Dataset, partition: Partition, clients: Sequence[int], shadows: int, rng: Generator
) -> list[Candidates]:
    """Return the candidates of each of these clients' classes, and who of the shadows holds them.

    A class that has no other samples than the client's is left out: nobody could be mistaken.
    """
    anybodys = np.unique(np.concatenate(partition.train))
    found = []
    for client in clients:
        own = partition.train[client]
        for label in partition.classes[client].tolist():
            members = own[dataset.train_y[own] == label]
            of_class = np.setdiff1d(np.flatnonzero(dataset.train_y == label), members)
            shuffled = rng.permutation(of_class)
            # Samples that nobody holds come first: no other upload tells of them.
            nobodys_first = shuffled[np.argsort(np.isin(shuffled, anybodys), kind="stable")]
            index_C = np.concatenate([members, nobodys_first[: len(members)]])
            if len(index_C) > len(members):
                held_FC = _held(len(members), len(index_C), shadows, rng)
                found.append(Candidates(client, label, index_C, len(members), held_FC))
    return found


def _held(members: int, candidates: int, shadows: int, rng: Generator) -> Bools:
    """Draw which candidates each shadow holds; the run itself holds the first ones."""
    held_FC = np.zeros((1 + shadows, candidates), np.bool_)
    held_FC[0, :members] = True
    for row in held_FC[1:]:
        row[rng.permutation(candidates)[:members]] = True
    return held_FC


def partitions(partition: Partition, asked: Sequence[Candidates], shadows: int) -> list[Partition]:
    """Return the run's partition, and each shadow's."""
    return [_partition(partition, asked, f) for f in range(1 + shadows)]


def _partition(partition: Partition, asked: Sequence[Candidates], federation: int) -> Partition:
    train = list(partition.train)
    for one in asked:
        kept = np.setdiff1d(train[one.client], one.index_C[: one.members])
        drawn = one.index_C[one.held_FC[federation]]
        train[one.client] = np.concatenate([kept, drawn])
    # Nobody looks at accuracies here: one test sample is enough.
    test = tuple(own[:1] for own in partition.test)
    return replace(partition, train=tuple(np.sort(own) for own in train), test=test)
