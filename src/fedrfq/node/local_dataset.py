"""What a federation's client trains on: its share of the experiment's data, or its own samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq import data
from fedrfq.data import DATASETS, Contract, Dataset
from fedrfq.data.partition import Partition
from fedrfq.data.split import Split, by_content, by_each_image
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import common_test, deal, validated


@dataclass(frozen=True)
class LocalDataset:
    """A dataset, and which of its samples are the client's: the partition has one row.

    `common` is tested on the samples of all classes that all clients are tested on. There are none
    where clients have samples of their own.
    """

    dataset: Dataset
    partition: Partition
    common: Partition | None = None


def find(
    experiment: Experiment,
    client: int,
    classes: int,
    name_or_path: str,
    contract: Contract | None = None,
) -> LocalDataset:
    """Load what a client trains on.

    By a dataset's name, this is the client's share of the experiment's partition; from a path, all
    samples are its own, and mapped to the federation's classes by their names if there is a
    contract. `classes` is the number of classes in the federation.
    """
    if contract is not None:
        return own(experiment, client, agreed(name_or_path, contract, _split(experiment)))
    _check_name(experiment, name_or_path)
    # Labels are matched to those of a known dataset by name, so that some may be missing.
    partial = experiment.data.name in DATASETS
    dataset = data.load(name_or_path, partial=partial, split=_split(experiment))
    if name_or_path in DATASETS:
        local = share(experiment, client, dataset)
    else:
        local = own(experiment, client, dataset)
    if len(local.dataset.classes) != classes:
        raise UserError(
            f"--data {name_or_path} has {len(local.dataset.classes)} classes, the federation"
            f" {classes}, which are fixed when it is founded: give data with these classes,"
            " or found a new federation with yours"
        )
    return local


def _split(experiment: Experiment) -> Split:
    """Return how a client's own samples are split where they are not yet."""
    # With ε, a sample that comes or goes must not change which others are trained on.
    return by_each_image if experiment.has_noise else by_content


def agreed(name_or_path: str, contract: Contract, split: Split) -> Dataset:
    """Load a client's own samples as the federation's data contract says."""
    if name_or_path in DATASETS:
        raise UserError(
            f"--data {name_or_path}: the federation's clients bring samples of their own;"
            " give the path of yours"
        )
    return data.load_agreed(name_or_path, contract, split)


def _check_name(experiment: Experiment, name: str) -> None:
    if name in DATASETS and name != experiment.data.name:
        raise UserError(
            f"--data {name}: the federation's experiment is on {experiment.data.name};"
            " give that name, or the path of your own samples"
        )


def share(experiment: Experiment, client: int, dataset: Dataset) -> LocalDataset:
    """Return a client's share of the experiment's partition of this dataset."""
    dealt = deal(experiment, dataset)
    common = common_test(experiment, dealt, dataset)
    return LocalDataset(dataset, dealt.only([client]), common.only([client]))


def own(experiment: Experiment, client: int, dataset: Dataset) -> LocalDataset:
    """Return all samples, except test samples of classes that the client does not train on."""
    dataset = _adapt(experiment, dataset)
    classes = np.unique(dataset.train_y)
    test = np.flatnonzero(np.isin(dataset.test_y, classes))
    if not len(test):
        raise UserError(
            f"{dataset.name} has no test samples of the classes that it has training samples of:"
            " add some"
        )
    everything = Partition((np.arange(len(dataset.train_y)),), (test,), (classes,))
    return LocalDataset(dataset, validated(experiment, everything, dataset))


def _adapt(experiment: Experiment, dataset: Dataset) -> Dataset:
    """Give a dataset the federation's classes, in their order, and its normalisation."""
    known = DATASETS.get(experiment.data.name)
    # The federation's own data are at a path, too: nothing is known of them here.
    if known is None:
        return dataset
    foreign = [name for name in dataset.classes if name not in known.classes]
    if foreign:
        raise UserError(
            f"the class {foreign[0]!r} of {dataset.name} is none of the federation's"
            f" ({', '.join(known.classes)}), which are fixed when it is founded:"
            " rename or remove it, or found a new federation with it"
        )
    place_J = np.array([known.classes.index(name) for name in dataset.classes])
    adapted = replace(
        dataset,
        classes=known.classes,
        train_y=place_J[dataset.train_y],
        test_y=place_J[dataset.test_y],
    )
    # Mean and deviation are per channel, so they only fit images with as many channels.
    if len(known.mean) == len(dataset.mean):
        return replace(adapted, mean=known.mean, std=known.std)
    if experiment.public.used:
        # A map of colour images is another one than that of grey images: means would not compare.
        raise UserError(
            f"{dataset.name} has images of {len(dataset.mean)} channels, and on the federation's"
            f" public map they have {len(known.mean)}, like {experiment.data.name}: convert them"
        )
    return adapted
