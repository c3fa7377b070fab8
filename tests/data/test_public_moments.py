"""Clients that train by DP-SGD see samples as constants say, not as the samples themselves do."""

from __future__ import annotations

import numpy as np
import torch

from fedrfq import experiment
from fedrfq.data import Dataset
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.runs.environment import described
from support.command import CPU

SETS = ["clients=2", "rounds=1", "partition.shots=3", "partition.test_shots=1", "partition.ways=2"]
PRIVATE = [*SETS, "method.name=fedavg", "train.dp_noise=1.0"]


def others_change(dataset: Dataset, sets: list[str]) -> bool:
    """Return whether a sample that becomes black changes what models see of any other sample."""
    made = experiment.load(sets=sets)
    before = RoundLoop([made], dataset, CPU)
    sample = int(before.partitions[0].train[0][0])
    x = dataset.train_x.copy()
    x[sample] = 0
    changed = Dataset.from_arrays(
        x, dataset.train_y, (dataset.test_x, dataset.test_y), dataset.classes
    )
    after = RoundLoop([made], changed, CPU, before.partitions)
    seen = [loop.engines[0].shares for loop in (before, after)]
    differs = (seen[0].x != seen[1].x).flatten(1).any(1)
    # Samples are in the order of their places, so that the first is where it was.
    assert torch.equal(seen[0].y, seen[1].y)
    return int(differs.sum()) > 1


def test_a_sample_does_not_change_what_models_see_of_the_others(mnist: Dataset) -> None:
    own = Dataset.from_arrays(
        mnist.train_x, mnist.train_y, (mnist.test_x, mnist.test_y), mnist.classes
    )
    assert others_change(own, SETS)
    assert not others_change(own, PRIVATE)
    # A model that was trained so has to be shown images in the same way afterwards.
    private = RoundLoop([experiment.load(sets=PRIVATE)], own, CPU)
    recorded = described(private.dataset)
    assert (recorded["mean"], recorded["std"]) == ([0.5], [0.25])


def test_constants_that_are_published_stay(mnist: Dataset) -> None:
    loop = RoundLoop([experiment.load(sets=PRIVATE)], mnist, CPU)
    assert loop.dataset is mnist
    assert np.allclose(mnist.mean, 0.1307)
