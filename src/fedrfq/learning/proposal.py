"""A partition that works, where the one that was asked for does not.

Small data break a partition in several ways at once: too few samples of a class, too few to test
on, too few for so many clients. So the program searches, by dealing, and says all it would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial

import numpy as np
import torch

from fedrfq.data import Dataset, is_given
from fedrfq.data.partition import (
    PARTITIONS,
    Classes,
    Dirichlet,
    FromFile,
    Groups,
    Iid,
    PartitionKind,
)
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.files.toml import Table
from fedrfq.models.mlp import MLP

# Before a class has fewer shots, or a client fewer samples, there are fewer clients.
_MIN_SHOTS = 10
_MIN_SAMPLES = 20
# Each try asks for this share of the one before.
_STEP = 0.75
# The partitions for a number of clients, those most like what was asked for first.
_Partitions = Callable[[int], Iterator[PartitionKind]]


def propose(
    experiment: Experiment, dataset: Dataset, deal: Callable[[Experiment, Dataset], object]
) -> str:
    """Return what makes of an experiment the nearest one that can be dealt; empty if none is found.

    `deal` raises UserError where the samples do not suffice.
    """

    def works(clients: int, partition: PartitionKind) -> bool:
        try:
            deal(replace(experiment, clients=clients, partition=partition), dataset)
        except UserError:
            return False
        return True

    for most, least, partitions in _ways(experiment.partition, experiment.clients, dataset):
        found = _most_clients(most, least, partitions, works)
        if found is not None:
            clients, partition = found
            tried = replace(experiment, clients=clients, partition=partition)
            return _line(experiment, _with_model(tried, dataset))
    return ""


def _most_clients(
    most: int, least: int, partitions: _Partitions, works: Callable[[int, PartitionKind], bool]
) -> tuple[int, PartitionKind] | None:
    """Return the most clients for which a partition works, and it; one client more has none."""

    def first(clients: int) -> PartitionKind | None:
        return next((each for each in partitions(clients) if works(clients, each)), None)

    too_many = most + 1
    for clients in _down(most, least):
        partition = first(clients)
        if partition is not None:
            break
        too_many = clients
    else:
        return None
    while too_many - clients > 1:
        middle = (clients + too_many) // 2
        more = first(middle)
        if more is None:
            too_many = middle
        else:
            clients, partition = middle, more
    return clients, partition


def _ways(
    asked: PartitionKind, clients: int, dataset: Dataset
) -> Iterator[tuple[int, int, _Partitions]]:
    """Yield ways to deal, those most like what was asked for first.

    Each has the most and the least clients to try, and the partitions for a number of clients.
    """
    if isinstance(asked, FromFile):
        return  # the file says who holds what, and nothing is like it
    if isinstance(asked, Classes):
        yield from _classes(asked, clients, dataset)
    if isinstance(asked, Groups):
        yield clients, 1, lambda number: iter([replace(asked, groups_per_client=1)])
    by_samples = asked if isinstance(asked, Dirichlet | Iid) else Dirichlet()
    yield clients, 1, partial(_samples, by_samples, dataset)


def _classes(
    asked: Classes, clients: int, dataset: Dataset
) -> Iterator[tuple[int, int, _Partitions]]:
    total = len(dataset.classes)
    shots = min(asked.shots, int(np.bincount(dataset.train_y, minlength=total).min()))
    test_shots = min(asked.test_shots, int(np.bincount(dataset.test_y, minlength=total).min()))
    # A class without samples cannot be dealt this way.
    if not shots or not test_shots:
        return
    most = replace(asked, ways=min(asked.ways, total), shots=shots, test_shots=test_shots)
    fewest = max(1, min(shots // 2, _MIN_SHOTS))
    yield clients, 2, lambda number: (replace(most, shots=each) for each in _down(shots, fewest))
    yield clients, clients, lambda number: iter([replace(most, share=True)])


def _samples(asked: Dirichlet | Iid, dataset: Dataset, clients: int) -> Iterator[Dirichlet | Iid]:
    samples = min(asked.samples, len(dataset.train_y) // clients)
    if samples < _MIN_SAMPLES and clients > 2:
        return
    for tests in _down(min(asked.test_samples, len(dataset.test_y)), 1):
        yield replace(asked, samples=max(1, samples), test_samples=tests)


def _down(most: int, least: int) -> Iterator[int]:
    """Yield whole numbers from the largest to the smallest, in steps that get smaller."""
    number = most
    while number > least:
        yield number
        number = max(least, int(number * _STEP))
    yield min(most, least)


def _with_model(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Return the experiment, with the model for small images if its own needs larger ones."""
    try:
        for cohort in experiment.models():
            cohort.model.start(dataset.shape, len(dataset.classes), torch.Generator())
    except UserError:
        return replace(experiment, model=MLP(), cohorts=())
    return experiment


def _line(asked: Experiment, found: Experiment) -> str:
    """Return what differs: as options of `fedrfq run`, or in Python where the data come from it."""
    changes = _changes(asked, found)
    if is_given(asked.data.name):
        return repr(changes)
    sets = [
        f"--set {section}.{key}={str(value).lower()}"
        for section, values in changes.items()
        if isinstance(values, dict)
        for key, value in values.items()
    ]
    if "clients" in changes:
        sets.insert(0, f"--set clients={changes['clients']}")
    return " ".join(sets)


def _changes(asked: Experiment, found: Experiment) -> Table:
    """Return the settings that differ."""
    changes: Table = {}
    if found.clients != asked.clients:
        changes["clients"] = found.clients
    partition: Table = {}
    before = dict(vars(asked.partition))
    if type(found.partition) is not type(asked.partition):
        partition["name"] = name_of(PARTITIONS, found.partition)
        before = {}
    for field in fields(found.partition):
        value = getattr(found.partition, field.name)
        if before.get(field.name, field.default) != value:
            partition[field.name] = value
    if partition:
        changes["partition"] = partition
    if found.model != asked.model:
        changes["model"] = {"name": "mlp"}
    return changes
