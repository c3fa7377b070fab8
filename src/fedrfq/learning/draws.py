"""What a run's seed decides: the partition, the first models, who takes part, and who attacks."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.random import Generator

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.data.partition.dealing import piles
from fedrfq.engine import counter_rng
from fedrfq.engine.counter_rng import Purpose
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.proposal import propose
from fedrfq.models.stacked import Params, trained
from fedrfq.prototypes.fixed_point import Globals

# Samples of each class in the common test set: FedProto tests clients on as many of each class.
_COMMON_SHOTS = 40


def deal(experiment: Experiment, dataset: Dataset) -> Partition:
    """Return which samples each client holds; where they do not suffice, say what would do."""
    try:
        return _dealt(experiment, dataset)
    except UserError as error:
        _check_testable(dataset)
        sets = propose(experiment, dataset, _dealt)
        if not sets:
            raise
        raise UserError(f"{error}; this works with these data: {sets}") from error


def _dealt(experiment: Experiment, dataset: Dataset) -> Partition:
    rng = generator(experiment, Purpose.PARTITION)
    partition = experiment.partition.deal(dataset, experiment.clients, rng)
    _check_whole(partition, experiment)
    return validated(experiment, partition, dataset)


def _check_testable(dataset: Dataset) -> None:
    """Refuse data of which no setting makes a partition: clients are tested on what they hold."""
    if not np.intersect1d(dataset.train_y, dataset.test_y).size:
        raise UserError(
            f"{dataset.name}: expected a class with training and test samples, found none: no"
            " client could be tested on what it learns; divide each class's samples into both"
        )


def _check_whole(partition: Partition, experiment: Experiment) -> None:
    """Raise UserError where a partition, which may be a plugin's, leaves a client with nothing."""
    name = type(experiment.partition).__qualname__
    if not isinstance(partition, Partition) or len(partition.train) != experiment.clients:
        raise UserError(
            f"the partition {name} must deal to {experiment.clients} clients: return "
            "Partition.of(dataset, train, test) with a row for each"
        )
    for client, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        if not len(train) or not len(test):
            raise UserError(
                f"the partition {name} gives client {client} {len(train)} training and {len(test)} "
                "test samples, and each needs one: lower clients, or change the partition"
            )


def validated(experiment: Experiment, partition: Partition, dataset: Dataset) -> Partition:
    """Return the partition, with samples held back if the experiment asks for it."""
    if not experiment.validation:
        return partition
    rng = generator(experiment, Purpose.VALIDATION)
    return partition.validated(experiment.validation, dataset.train_y, rng)


def common_test(experiment: Experiment, partition: Partition, dataset: Dataset) -> Partition:
    """Return the partition with all clients tested on one set of samples, of all classes.

    Nobody trains on them. They are test samples or, with validation, samples that clients hold
    back: as many of each class, or all there are of a rare one.
    """
    candidates = np.arange(len(dataset.test_y))
    labels = dataset.test_y
    if experiment.validation:
        # Settings are chosen by these figures: not even here may they see a test sample.
        held_back = np.concatenate(partition.test)
        # Clients may share samples: what one holds back another may train on.
        candidates = np.setdiff1d(held_back, np.concatenate(partition.train))
        labels = dataset.train_y[candidates]
    rng = generator(experiment, Purpose.COMMON_TEST)
    by_class = [
        rng.permutation(pile)[:_COMMON_SHOTS] for pile in piles(labels, len(dataset.classes))
    ]
    common = np.sort(candidates[np.concatenate(by_class)])
    test = (common,) * len(partition.train)
    return replace(partition, test=test, held_out=bool(experiment.validation))


def start(experiment: Experiment, client: int, dataset: Dataset) -> Params:
    """Return a client's random model before the first round.

    It is the client's own, or with `init = "same"` that of the first client of its cohort.
    """
    first, model = experiment.place(client)
    who = first
    if experiment.init == "own":
        who = client
    seed = counter_rng.integer(experiment.seed, Purpose.START, who)
    rng = torch.Generator().manual_seed(seed)
    params = model.start(dataset.shape, len(dataset.classes), rng)
    if experiment.train.private and not all(map(trained, params)):
        raise UserError(
            "train.dp_noise clips each sample's gradient, and in a model with BatchNorm samples"
            " have none of their own: choose a model without, such as model.name = 'cnn'"
        )
    return params


def participants(experiment: Experiment, number: int) -> list[int]:
    """Return who trains in a round: a random share of the clients, in ascending order.

    When statistics on a public map are exchanged, everybody takes part. Who leaves does so for the
    last time.
    """
    leaving = experiment.public.leaving()
    gone = {client for client, round_ in leaving.items() if round_ < number}
    if experiment.public.due(number):
        return [client for client in range(experiment.clients) if client not in gone]
    size = max(1, round(experiment.participation * experiment.clients))
    drawn = _drawn(experiment, Purpose.PARTICIPATION, size, number, gone=gone)
    return sorted({*drawn, *leavers(experiment, number)})


def leavers(experiment: Experiment, number: int) -> list[int]:
    """Return who leaves in a round, and takes its statistics back."""
    return [client for client, round_ in experiment.public.leaving().items() if round_ == number]


def attackers(experiment: Experiment) -> list[int]:
    """Return the malicious clients, in ascending order."""
    return _drawn(experiment, Purpose.MALICIOUS, experiment.attack.clients)


def believed_labels(
    experiment: Experiment, partition: Partition, malicious: Sequence[int], dataset: Dataset
) -> list[Ints]:
    """Return the labels each client trains with: the true ones, or those an attacker makes up."""
    labels = [dataset.train_y[index] for index in partition.train]
    for k in malicious:
        rng = generator(experiment, Purpose.POISON, k)
        labels[k] = experiment.attack.poison(labels[k], len(dataset.classes), rng)
    return labels


def targets(experiment: Experiment, rounds: int, globals_: Globals) -> Globals:
    """Return the prototypes that clients use, given those decided after so many rounds."""
    rng = generator(experiment, Purpose.TARGETS)
    return experiment.method.targets(rounds, globals_, rng)


def generator(experiment: Experiment, purpose: Purpose, *more: int) -> Generator:
    """Return the numpy generator for one purpose, and for a client or a round where it has one."""
    return np.random.default_rng(counter_rng.integer(experiment.seed, purpose, *more))


def _drawn(
    experiment: Experiment, purpose: Purpose, size: int, *more: int, gone: Container[int] = ()
) -> list[int]:
    """Draw `size` clients that have not gone: those with the smallest of random words."""
    words = counter_rng.bits(counter_rng.key(experiment.seed, *more), purpose, experiment.clients)
    order = [client for client in words.argsort(stable=True).tolist() if client not in gone]
    return sorted(order[:size])
