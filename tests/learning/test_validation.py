"""Validation: settings are chosen on samples held back from training, never on test samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning.round_loop import RoundLoop, deal
from support.small import CPU, run, timeless, tiny


def with_validation(share: float = 0.3, seed: int = 0) -> Experiment:
    return tiny(validation=share, seed=seed, model={"name": "mlp", "width": 20})


def test_each_client_is_tested_on_a_share_of_its_own_training_samples(mnist: Dataset) -> None:
    """Of every class the same share is held back, 2 of 7 at 0.3; the rest is trained on."""
    plain = deal(tiny(), mnist)
    held = deal(with_validation(), mnist)
    assert (plain.held_out, held.held_out) == (False, True)
    for before, train, test, classes, same in zip(
        plain.train, held.train, held.test, held.classes, plain.classes, strict=True
    ):
        assert np.array_equal(classes, same)
        assert not np.intersect1d(train, test).size
        assert np.array_equal(np.union1d(train, test), before)
        assert np.array_equal(np.sort(test), test)
        counts = [
            np.bincount(mnist.train_y[index], minlength=10)[classes].tolist()
            for index in (train, test)
        ]
        assert counts == [[5] * len(classes), [2] * len(classes)]


def test_no_held_back_sample_is_trained_on_and_no_test_sample_is_used(mnist: Dataset) -> None:
    loop = RoundLoop([with_validation()], mnist, CPU)
    (engine,) = loop.engines
    (partition,) = loop.partitions
    for k in range(6):
        for shares, index in (
            (engine.shares, partition.train[k]),
            (engine.tests, partition.test[k]),
        ):
            mine = shares.index_KN[k, : shares.counts[k]]
            pixels = (
                torch.from_numpy(mnist.train_x[index]).float() / 255 - mnist.mean[0]
            ) / mnist.std[0]
            torch.testing.assert_close(shares.x[mine], pixels)
            assert np.array_equal(shares.y[mine].numpy(), mnist.train_y[index])


def test_other_test_samples_change_nothing(mnist: Dataset) -> None:
    """Black pictures with the next digit's label in their place: not a figure differs."""
    other = replace(mnist, test_x=np.zeros_like(mnist.test_x), test_y=(mnist.test_y + 1) % 10)
    for share, same in ((0.3, True), (0.0, False)):
        found, expected = (
            run([with_validation(share)], dataset, 2)[1] for dataset in (mnist, other)
        )
        assert ([timeless(o) for (o,) in found] == [timeless(o) for (o,) in expected]) == same


def test_what_is_held_back_is_drawn_by_the_seed(mnist: Dataset) -> None:
    one, again, other = (deal(with_validation(seed=seed), mnist) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one.test, again.test, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(one.test, other.test, strict=True))


def test_clients_do_not_hold_back_by_place(mnist: Dataset) -> None:
    """At random, not the first of each class."""
    before = deal(tiny(), mnist)
    held = deal(with_validation(), mnist)
    firsts = 0
    for own, test in zip(before.train, held.test, strict=True):
        for j in np.unique(mnist.train_y[own]):
            of_class = own[mnist.train_y[own] == j]
            firsts += np.array_equal(np.intersect1d(of_class, test), of_class[:2])
    assert firsts < 5  # of about 18, and one in 21 by chance


def test_writers_hold_back_too(mnist: Dataset) -> None:
    """Whether or not they have test samples of their own."""
    pick = np.arange(0, 4000, 10)
    writers = np.arange(len(pick)) % 4
    dataset = replace(
        mnist,
        train_x=mnist.train_x[pick],
        train_y=mnist.train_y[pick],
        test_x=mnist.test_x[:400],
        test_y=mnist.test_y[:400],
        train_groups=writers,
        test_groups=np.arange(400) % 4 + 100,
    )
    made = from_table({"clients": 3, "partition": {"name": "groups"}})
    plain = deal(made, dataset)
    held = deal(replace(made, validation=0.2), dataset)
    assert plain.held_out
    for before, train, test in zip(plain.train, held.train, held.test, strict=True):
        assert np.array_equal(np.union1d(train, test), before)
        assert set(dataset.train_y[test]) <= set(dataset.train_y[train])


@pytest.mark.parametrize("share", [0.01, 0.95])
def test_a_share_that_leaves_a_client_nothing_is_refused(mnist: Dataset, share: float) -> None:
    """Of 7 samples a class a hundredth is none, and nineteen twentieths are all."""
    with pytest.raises(
        UserError, match=rf"validation = {share} leaves client 0 nothing to train on or to test"
    ) as caught:
        RoundLoop([with_validation(share)], mnist, CPU)
    assert "\n" not in str(caught.value)


def test_a_run_with_validation_stacks_with_one_without(mnist: Dataset) -> None:
    pair = [with_validation(), with_validation(0.0)]
    _, ((one, two),) = run(pair, mnist, 1)
    for experiment, outcome in zip(pair, (one, two), strict=True):
        _, ((alone,),) = run([experiment], mnist, 1)
        assert outcome.record.accuracy_mean == pytest.approx(alone.record.accuracy_mean, abs=4)
        assert outcome.record.samples == alone.record.samples
