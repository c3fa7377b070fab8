"""Partitions: exact counts, disjointness, statistics of the draws, same seeds, every refusal."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition import (
    PARTITIONS,
    Classes,
    Dirichlet,
    Groups,
    Iid,
    Partition,
    PartitionKind,
)
from fedrfq.errors import UserError


def make(train: list[int], test: list[int], writers: int | None = None, seed: int = 0) -> Dataset:
    """Return a dataset with these counts of each class, in random order, by writers in turn."""
    rng = np.random.default_rng(seed)
    train_y = rng.permutation(np.repeat(np.arange(len(train)), train))
    test_y = rng.permutation(np.repeat(np.arange(len(test)), test))
    return Dataset(
        name="toy",
        train_x=np.zeros((len(train_y), 1, 1, 1), np.uint8),
        train_y=train_y,
        test_x=np.zeros((len(test_y), 1, 1, 1), np.uint8),
        test_y=test_y,
        classes=tuple(f"class {label}" for label in range(len(train))),
        mean=(0.5,),
        std=(0.5,),
        sha256="",
        train_groups=None if writers is None else np.arange(len(train_y)) % writers + 100,
        test_groups=None if writers is None else np.arange(len(test_y)) % writers + 100,
    )


MNIST = make([6000] * 10, [1000] * 10)
TOY = make([50, 40, 30, 60], [20, 30, 25, 20], writers=12)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def counts(labels: NDArray[np.int64], indices: NDArray[np.int64]) -> dict[int, int]:
    found = np.unique_counts(labels[indices])
    return dict(zip(found.values.tolist(), found.counts.tolist(), strict=True))


def same(a: Partition, b: Partition) -> bool:
    pairs = zip(a.train + a.test + a.classes, b.train + b.test + b.classes, strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_the_papers_partition_has_exact_counts() -> None:
    dealt = Classes().deal(MNIST, 20, rng())
    assert len(dealt.train) == len(dealt.test) == len(dealt.classes) == 20
    for train, test, classes in zip(dealt.train, dealt.test, dealt.classes, strict=True):
        assert counts(MNIST.train_y, train) == dict.fromkeys(classes.tolist(), 100)
        assert counts(MNIST.test_y, test) == dict.fromkeys(classes.tolist(), 40)
    assert not dealt.realised["shared"]
    assert not dealt.held_out


@pytest.mark.parametrize(
    ("ways", "spread", "numbers"),
    [
        (3, 2, {2, 3, 4, 5}),
        (5, 3, set(range(2, 9))),
        (4, 1, {3, 4, 5}),
        (9, 3, {6, 7, 8, 9, 10}),
        (3, 0, {3}),
        (1, 0, {1}),
        (1, 1, {2}),
    ],
)
def test_uniform_draws_take_the_range_of_the_protocol(
    ways: int, spread: int, numbers: set[int]
) -> None:
    dealt = Classes(ways, spread, shots=1, test_shots=1, share=True).deal(MNIST, 2000, rng())
    held = [len(classes) for classes in dealt.classes]
    assert set(held) == numbers
    assert dealt.realised["classes_mean"] == pytest.approx(np.mean(sorted(numbers)), abs=0.15)
    assert dealt.realised["classes_std"] == pytest.approx(np.std(sorted(numbers)), abs=0.1)


def test_normal_draws_have_the_mean_and_deviation_asked_for() -> None:
    dealt = Classes(5, 2, shots=1, test_shots=1, draw="normal", share=True).deal(MNIST, 2000, rng())
    held = [len(classes) for classes in dealt.classes]
    assert (min(held), max(held)) == (1, 10)
    assert np.mean(held) == pytest.approx(5, abs=0.2)
    assert np.std(held) == pytest.approx(2, abs=0.2)


def test_every_class_is_drawn_alike() -> None:
    dealt = Classes(shots=1, test_shots=1).deal(MNIST, 2000, rng())
    drawn = np.bincount(np.concatenate(dealt.classes), minlength=10)
    assert drawn == pytest.approx(np.full(10, 700), rel=0.15)


def test_realised_by_hand() -> None:
    train = (np.array([1, 2]), np.array([2, 3, 4]))
    dealt = Partition(train, train, (np.array([0, 1]), np.array([0, 1, 2, 3])))
    expected = {
        "classes_mean": 3.0,
        "classes_std": 1.0,
        "samples_min": 2,
        "samples_max": 3,
        "shared": True,
    }
    assert dealt.realised == expected
    assert replace(dealt, train=(np.array([1, 2]), np.array([3]))).realised["shared"] is False


def test_one_class_and_two_classes() -> None:
    assert Classes(1, 2, 5, 5).deal(make([9], [9]), 1, rng()).classes[0].tolist() == [0]
    assert Classes(1, 2, 5, 5).deal(make([9, 9], [9, 9]), 1, rng()).classes[0].tolist() == [0, 1]


def test_sharing_lets_more_clients_in_and_is_reported() -> None:
    options = Classes(ways=2, spread=0, shots=20, test_shots=5)
    with pytest.raises(UserError, match=r"partition.share = true"):
        options.deal(TOY, 30, rng())
    dealt = replace(options, share=True).deal(TOY, 30, rng())
    assert dealt.realised["shared"] is True
    assert {len(train) for train in dealt.train} == {40}


@pytest.mark.parametrize("kind", [Classes(2, 1, 7, 5), Dirichlet(0.5, 25, 10), Iid(25, 10)])
def test_the_number_of_clients_in_the_error_is_the_largest_that_works(kind: PartitionKind) -> None:
    with pytest.raises(UserError, match="toy has samples for") as caught:
        kind.deal(TOY, 200, rng(3))
    most = int(str(caught.value).split("lower clients to ")[1].split()[0])
    assert len(kind.deal(TOY, most, rng(3)).train) == most
    with pytest.raises(UserError, match=f"for {most} of these {most + 1} clients"):
        kind.deal(TOY, most + 1, rng(3))


def test_disjoint_clients_can_use_up_the_dataset() -> None:
    dealt = Iid(samples=45, test_samples=5).deal(TOY, 4, rng())
    assert sorted(np.concatenate(dealt.train)) == list(range(180))
    dealt = Dirichlet(0.1, samples=45, test_samples=5).deal(TOY, 4, rng())
    assert sorted(np.concatenate(dealt.train)) == list(range(180))


def test_more_clients_leave_the_first_ones_training_samples() -> None:
    few = Classes().deal(MNIST, 5, rng())
    many = Classes().deal(MNIST, 20, rng())
    assert all(np.array_equal(a, b) for a, b in zip(few.train, many.train, strict=False))


@pytest.mark.parametrize(
    ("alpha", "low", "high"), [(0.01, 0.85, 1.0), (1.0, 0.2, 0.4), (1000.0, 0.1, 0.14)]
)
def test_dirichlet_concentrates_as_alpha_falls(alpha: float, low: float, high: float) -> None:
    dealt = Dirichlet(alpha, samples=1000, share=True).deal(MNIST, 200, rng())
    top = [max(counts(MNIST.train_y, train).values()) / 1000 for train in dealt.train]
    assert low <= np.mean(top) <= high
    assert {len(train) for train in dealt.train} == {1000}
    assert {len(test) for test in dealt.test} == {100}


def test_dirichlet_tests_follow_the_training_proportions() -> None:
    dealt = Dirichlet(1.0, samples=2000, test_samples=900, share=True).deal(MNIST, 5, rng())
    for train, test in zip(dealt.train, dealt.test, strict=True):
        shares = [
            np.bincount(y[i], minlength=10) / len(i)
            for y, i in ((MNIST.train_y, train), (MNIST.test_y, test))
        ]
        assert np.abs(shares[0] - shares[1]).max() < 0.06


@pytest.mark.parametrize("alpha", [1e-300, 1e-5, 1e6])
def test_dirichlet_takes_any_alpha(alpha: float) -> None:
    dealt = Dirichlet(alpha, samples=45, test_samples=5).deal(TOY, 4, rng())
    assert [len(train) for train in dealt.train] == [45] * 4


def test_iid_clients_mirror_the_dataset() -> None:
    dealt = Iid(samples=3000, test_samples=500).deal(MNIST, 20, rng())
    assert dealt.realised["classes_mean"] == 10
    assert min(min(counts(MNIST.train_y, train).values()) for train in dealt.train) > 230


def test_writers_keep_all_their_samples() -> None:
    dealt = Groups(groups_per_client=2).deal(TOY, 6, rng())
    assert TOY.train_groups is not None
    assert TOY.test_groups is not None
    assert sorted(np.concatenate(dealt.train)) == list(range(180))
    for train, test in zip(dealt.train, dealt.test, strict=True):
        assert len(train) == 30
        assert len(np.unique(TOY.train_groups[train])) == 2
        assert set(TOY.test_groups[test]) <= set(TOY.train_groups[train])
    assert not dealt.held_out


def test_writers_without_test_samples_hold_back_a_fifth_of_their_own() -> None:
    assert TOY.test_groups is not None
    strangers = replace(TOY, test_groups=TOY.test_groups + 1000)
    dealt = Groups(2).deal(strangers, 6, rng())
    assert dealt.held_out
    for train, test in zip(dealt.train, dealt.test, strict=True):
        assert (len(train), len(test)) == (24, 6)
        assert not set(train) & set(test)
        assert set(TOY.train_y[test]) <= set(TOY.train_y[train])


def test_a_writer_with_nothing_to_hold_back_is_an_error() -> None:
    single = replace(make([3, 3], [3, 3], writers=6), test_groups=np.zeros(6, np.int64))
    with pytest.raises(UserError, match=r"raise partition.groups_per_client"):
        Groups().deal(single, 6, rng())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ways": 0}, "partition.ways must be 1 to the dataset"),
        ({"shots": 0}, "partition.shots must be 1 or more"),
        ({"test_shots": -3}, "partition.test_shots must be 1 or more, not -3"),
        ({"spread": -1}, "partition.spread must be 0 or more"),
        ({"draw": "poisson"}, "partition.draw must be one of uniform, normal, not 'poisson'"),
        ({"ways": 11}, "partition.ways = 11 exceeds the 10 classes of toy"),
        (
            {"shots": 6001},
            "class 'class 0' of toy has 6000 training samples, fewer than partition.shots = 6001",
        ),
        (
            {"test_shots": 1001},
            "has 1000 test samples.*partition.test_shots = 1001; set it to at most 1000",
        ),
    ],
)
def test_refusals_of_classes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Classes(**options).deal(MNIST, 2, rng())


def test_the_rarest_class_is_named() -> None:
    with pytest.raises(UserError, match="class 'class 2' of toy has 30 training samples"):
        Classes(2, 0, shots=31, test_shots=1).deal(TOY, 1, rng())
    assert len(Classes(2, 0, shots=30, test_shots=1).deal(TOY, 1, rng()).train[0]) == 60


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("dirichlet", {"alpha": 0.0}, "partition.alpha must be above 0, not 0.0"),
        ("dirichlet", {"alpha": float("nan")}, "partition.alpha must be above 0, not nan"),
        ("dirichlet", {"samples": 0}, "partition.samples must be 1 or more"),
        (
            "dirichlet",
            {"samples": 181, "share": True},
            "180 training samples; set partition.samples to at most 180",
        ),
        ("iid", {"test_samples": 0}, "partition.test_samples must be 1 or more"),
        ("iid", {"samples": 181}, "180 training samples; set partition.samples to at most 180"),
        ("iid", {"samples": 90, "test_samples": 96}, "set partition.test_samples to at most 95"),
        ("groups", {"groups_per_client": 0}, "partition.groups_per_client must be 1 or more"),
        (
            "groups",
            {"groups_per_client": 7},
            "writers for 1 such clients, not 2; lower clients or partition.groups_per_client",
        ),
    ],
)
def test_refusals_of_the_others(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PARTITIONS[kind](**options).deal(TOY, 2, rng())


def test_too_few_test_samples_of_a_clients_classes() -> None:
    # One class each, of at most 30 test samples.
    kind = Dirichlet(1e-5, samples=30, test_samples=31)
    with pytest.raises(UserError, match=r"set partition.test_samples to at most") as caught:
        kind.deal(TOY, 3, rng())
    most = int(str(caught.value).split("at most ")[1])
    dealt = replace(kind, test_samples=most).deal(TOY, 3, rng())
    assert [len(test) for test in dealt.test] == [most] * 3


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("clients", [0, -1])
def test_no_clients(name: str, clients: int) -> None:
    with pytest.raises(UserError, match=f"clients = {clients} must be at least 1"):
        PARTITIONS[name]().deal(MNIST if name != "groups" else TOY, clients, rng())


def test_groups_of_a_dataset_without_writers() -> None:
    with pytest.raises(UserError, match=r"toy does not say who wrote what.*LEAF"):
        Groups().deal(MNIST, 2, rng())


def test_a_thousand_clients_are_dealt_quickly() -> None:
    begin = time.perf_counter()
    Classes(share=True).deal(MNIST, 1000, rng())
    assert time.perf_counter() - begin < 5


KINDS = st.one_of(
    st.builds(
        Classes,
        ways=st.integers(1, 4),
        spread=st.integers(0, 5),
        shots=st.integers(1, 4),
        test_shots=st.integers(1, 20),
        draw=st.sampled_from(["uniform", "normal"]),
        share=st.booleans(),
    ),
    st.builds(
        Dirichlet,
        st.floats(0.01, 100),
        st.integers(1, 22),
        test_samples=st.integers(1, 20),
        share=st.booleans(),
    ),
    st.builds(Iid, st.integers(1, 22), test_samples=st.integers(1, 20), share=st.booleans()),
    st.just(Groups()),
)


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, clients=st.integers(1, 7), seed=st.integers(0, 2**32), strangers=st.booleans())
def test_every_partition(kind: PartitionKind, clients: int, seed: int, strangers: bool) -> None:
    assert TOY.test_groups is not None
    dataset = TOY
    if strangers:
        dataset = replace(TOY, test_groups=TOY.test_groups + 1000)
    dealt = kind.deal(dataset, clients, rng(seed))
    assert same(dealt, kind.deal(dataset, clients, rng(seed)))
    test_y = dataset.train_y if dealt.held_out else dataset.test_y
    for train, test, classes in zip(dealt.train, dealt.test, dealt.classes, strict=True):
        for indices, labels in ((train, dataset.train_y), (test, test_y)):
            assert indices.dtype == np.int64
            assert len(indices) > 0
            assert (np.diff(indices) > 0).all()
            assert indices[0] >= 0
            assert indices[-1] < len(labels)
            assert np.isin(labels[indices], classes).all()
        assert classes.tolist() == sorted(set(dataset.train_y[train].tolist()))
    if not getattr(kind, "share", False):
        assert not dealt.realised["shared"]


@pytest.mark.parametrize(
    "kind", [Classes(2, 1, 3, 5), Dirichlet(0.5, 20, 10), Iid(20, 10), Groups()]
)
def test_another_seed_deals_otherwise(kind: PartitionKind) -> None:
    assert not same(kind.deal(TOY, 5, rng(0)), kind.deal(TOY, 5, rng(1)))
