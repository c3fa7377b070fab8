"""What clients send about their classes on a public map, and what the committee is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.data.partition import Partition
from fedrfq.learning.public.classifier import CertifiedStatistics, classifier
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import vectors
from fedrfq.models.public_maps import NoMap, PublicMap, RandomMap
from fedrfq.prototypes.class_statistics import unpacked
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals
from fedrfq.robust.aggregation import combine
from support.small import CPU

MEANS = RandomMap(first=4, second=2)
MOMENTS = RandomMap(first=4, second=2, moments="full", bits=16)


def _exchange(map_: PublicMap, mnist: Dataset) -> PublicExchange:
    """Return that of two clients, who share no sample; the first has one of class 3."""
    three = np.flatnonzero(mnist.train_y == 3)[:1]
    five = np.flatnonzero(mnist.train_y == 5)[:40]
    train = (np.concatenate([three, five[:20]]), five[20:])
    classes = (np.array([3, 5]), np.array([5]))
    partition = Partition(train, train, classes)
    labels = [mnist.train_y[own] for own in train]
    return PublicExchange.of(map_, partition, labels, mnist, CPU)


def test_without_a_map_the_committee_is_asked_nothing() -> None:
    assert public_task(NoMap(), 10) is None


@pytest.mark.parametrize(("map_", "moments"), [(MEANS, 0), (MOMENTS, 17)])
def test_the_committee_knows_the_map_the_norm_and_the_form(map_: PublicMap, moments: int) -> None:
    """A triangle of 32·33/2 = 528 values takes 17 rows of 32."""
    task = public_task(map_, 10)
    assert task is not None
    assert (task.map, task.norm) == (map_.identity(), 32**0.5)
    assert (task.classes, task.moments, task.values) == (10, moments, 32)
    assert task.precision.bits == map_.bits


def test_uploads_are_the_counts_and_the_means_of_held_classes(mnist: Dataset) -> None:
    exchange = _exchange(MEANS, mnist)
    uploads = exchange.uploads([0, 1])
    assert uploads.counts_KJ[:, [3, 5]].tolist() == [[1, 20], [0, 20]]
    assert uploads.counts_KJ.sum() == 41
    assert not uploads.values_KJV[uploads.counts_KJ == 0].any()
    five = np.flatnonzero(mnist.train_y == 5)[20:40]
    expected_V = vectors(MEANS, mnist, "train", five, CPU).mean(0).numpy() * 2**FRACTION_BITS
    assert np.abs(uploads.values_KJV[1, 5] - expected_V).max() <= uploads.precision.step / 2 + 1


def test_only_those_asked_upload(mnist: Dataset) -> None:
    exchange = _exchange(MEANS, mnist)
    both = exchange.uploads([0, 1])
    second = exchange.uploads([1])
    assert second.clients == (1,)
    assert np.array_equal(second.values_KJV[0], both.values_KJV[1])


def test_second_moments_are_the_covariance_about_the_class_means(mnist: Dataset) -> None:
    uploads = _exchange(MOMENTS, mnist).uploads([1])
    assert (uploads.counts_KJ[0, 10:] == 20).all()
    five = np.flatnonzero(mnist.train_y == 5)[20:40]
    z_NV = vectors(MOMENTS, mnist, "train", five, CPU).double()
    found_VV = unpacked(torch.from_numpy(uploads.values_KJV[0, 10:] / 2.0**FRACTION_BITS))
    torch.testing.assert_close(found_VV, torch.cov(z_NV.mT, correction=0), atol=2e-4, rtol=0)


@pytest.mark.parametrize("map_", [MEANS, MOMENTS])
def test_what_honest_clients_send_lies_within_the_norm(mnist: Dataset, map_: PublicMap) -> None:
    """A class of one sample has the longest mean: of the norm C itself."""
    task = public_task(map_, 10)
    assert task is not None
    uploads = _exchange(map_, mnist).uploads([0, 1])
    assert not uploads.checked(task.bound).refused
    assert uploads.saturated == 0
    doubled_JV = uploads.values_KJV[0] * 2
    assert "the mean of class 3" in (task.bound.problem(uploads.counts_KJ[0], doubled_JV) or "")


def test_every_client_gets_a_classifier(mnist: Dataset) -> None:
    exchange = _exchange(MEANS, mnist)
    uploads = exchange.uploads([0, 1])
    made = exchange.classifiers(Globals(uploads.counts_KJ[0] > 0, uploads.values_KJV[0]))
    assert len(made) == 2
    for one, z_NV, y_N in zip(made, exchange.vectors, exchange.labels, strict=True):
        guess_N = one.log_probabilities(z_NV).argmax(1)
        assert (guess_N == y_N).float().mean() > 0.9
        assert set(guess_N.tolist()) <= {3, 5}


def test_second_moments_of_fewer_samples_than_values_still_tell_classes_apart(
    mnist: Dataset,
) -> None:
    """Of 80 samples in 128 values: unless it is shrunk, LDA is worse than the nearest mean."""
    lda = RandomMap(first=16, second=8, moments="full", bits=16)
    piles = [np.flatnonzero(mnist.train_y == digit)[:8] for digit in range(10)]
    train = (np.concatenate(piles[:5]), np.concatenate(piles[5:]))
    partition = Partition(train, train, (np.arange(5), np.arange(5, 10)))
    labels = [mnist.train_y[own] for own in train]
    exchange = PublicExchange.of(lda, partition, labels, mnist, CPU)
    task = public_task(lda, 10)
    assert task is not None
    uploads = exchange.uploads([0, 1])
    known = combine(Globals.none(task.rows, task.values), uploads, "weighted")
    certified = CertifiedStatistics.of(known, 10, CPU)
    assert certified.covariance_VV is not None
    z_NV = vectors(lda, mnist, "test", np.arange(len(mnist.test_y)), CPU)
    right = {}
    for name, change in {
        "lda": {},
        "nearest": {"classifier": "nearest"},
        "hardly shrunk": {"shrinkage": 0.001},
    }.items():
        map_ = replace(lda, **change)
        made = classifier(map_, certified, exchange.vectors[0], exchange.labels[0])
        chance_NJ = made.log_probabilities(z_NV)
        assert chance_NJ.isfinite().all()
        right[name] = float((chance_NJ.argmax(1).numpy() == mnist.test_y).mean())
    assert right["lda"] > right["nearest"] + 0.03 > right["hardly shrunk"] + 0.06
