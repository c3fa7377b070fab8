"""What a client of a federation has to train on: its share of the experiment's data, or samples of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq import data
from fedrfq.data import DATASETS, Dataset
from fedrfq.data.partition import Partition
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import deal, validated


@dataclass(frozen=True)
class LocalDataset:
    """The samples, and which of them are the client's: the one row of the partition."""

    dataset: Dataset
    partition: Partition


def find(experiment: Experiment, client: int, classes: int, name_or_path: str) -> LocalDataset:
    """By a dataset's name the client's share of the experiment's partition; at a path all samples are its own. `classes`
    is how many the federation knows."""
    if name_or_path in DATASETS:
        holding = share
    else:
        holding = own
    found = holding(experiment, client, data.load(_checked(experiment, name_or_path)))
    if len(found.dataset.classes) != classes:
        raise UserError(
            f"--data {name_or_path} has {len(found.dataset.classes)} classes, the federation {classes}"
        )
    return found


def _checked(experiment: Experiment, name: str) -> str:
    if name in DATASETS and name != experiment.data.name:
        raise UserError(
            f"--data {name}: the federation's experiment is on {experiment.data.name}; name that, or a path"
        )
    return name


def share(experiment: Experiment, client: int, dataset: Dataset) -> LocalDataset:
    dealt = deal(experiment, dataset)
    train, test, classes = ((rows[client],) for rows in (dealt.train, dealt.test, dealt.classes))
    return LocalDataset(dataset, Partition(train, test, classes, dealt.held_out))


def own(experiment: Experiment, client: int, dataset: Dataset) -> LocalDataset:
    """All samples; tested on those of classes that it trains on."""
    dataset = _adapted(experiment, dataset)
    classes = np.unique(dataset.train_y)
    test = np.flatnonzero(np.isin(dataset.test_y, classes))
    if not len(test):
        raise UserError(
            f"{dataset.name} has no test samples of the classes it has training samples of: add some"
        )
    every = Partition((np.arange(len(dataset.train_y)),), (test,), (classes,))
    return LocalDataset(dataset, validated(experiment, every, dataset))


def _adapted(experiment: Experiment, dataset: Dataset) -> Dataset:
    """As the federation's: its classes in its order, its normalisation. Of one that is itself on a path nothing is known."""
    known = DATASETS.get(experiment.data.name)
    if known is None:
        return dataset
    strange = [name for name in dataset.classes if name not in known.classes]
    if strange:
        raise UserError(
            f"the class {strange[0]!r} of {dataset.name} is none of the federation's: {', '.join(known.classes)}"
        )
    place_J = np.array([known.classes.index(name) for name in dataset.classes])
    train_y = place_J[dataset.train_y]
    test_y = place_J[dataset.test_y]
    same = len(known.mean) == len(dataset.mean)  # channels
    if same:
        mean = known.mean
        std = known.std
    else:
        mean = dataset.mean
        std = dataset.std
    return replace(
        dataset, classes=known.classes, train_y=train_y, test_y=test_y, mean=mean, std=std
    )
