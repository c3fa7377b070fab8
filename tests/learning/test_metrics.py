"""Measures against what they say in words: loops over pairs, and figures done by hand."""

from __future__ import annotations

from itertools import product
from math import dist, isnan

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from fedrfq.learning import metrics


def test_accuracies_do_not_count_padding() -> None:
    guess = torch.tensor([[1, 2, 3, 3], [0, 0, 5, 5]])
    y = torch.tensor([[1, 2, 0, 3], [0, 1, 5, 5]])
    weight = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    assert metrics.accuracies(guess, y, weight).tolist() == [75, 50]


def test_running_std_is_that_of_averages_never_reset() -> None:
    """Clients right in 1 of 2, 6 of 6 and 0 of 4: so far 1/2, 7/8, 7/12."""
    found = metrics.running_std(np.array([50.0, 100.0, 0.0]), np.array([2, 6, 4]))
    assert found == pytest.approx(np.std([50, 700 / 8, 700 / 12]))


def test_distances_are_of_every_prototype_to_every_global() -> None:
    p = torch.randn(2, 3, 4, dtype=torch.float64)
    globals_ = torch.randn(5, 4, dtype=torch.float64)
    found = metrics.distances(p, globals_)
    for k, n, j in product(range(2), range(3), range(5)):
        assert found[k, n, j].item() == pytest.approx(dist(p[k, n].tolist(), globals_[j].tolist()))


def test_distances_of_far_neighbours_are_not_rounded_away() -> None:
    p = torch.tensor([[[60.0] * 50]])
    assert metrics.distances(p, p[0] + 2**-14).item() == pytest.approx(50**0.5 * 2**-14, rel=1e-3)


def test_nearest_among_the_classes_allowed() -> None:
    distance = torch.tensor([[[3.0, 1, 2], [1, 5, 4]], [[3, 1, 2], [1, 5, 4]]])
    allowed = torch.tensor([[True, True, True], [False, False, True]])
    assert metrics.nearest(distance, allowed).tolist() == [[1, 0], [2, 2]]


def test_without_a_class_allowed_no_guess_is_right() -> None:
    """A client whose classes have no global prototypes yet cannot be right, not even on class 0."""
    guess = metrics.nearest(torch.ones(1, 3, 3), torch.tensor([[False, False, False]]))
    y = torch.tensor([[0, 1, 2]])
    assert metrics.accuracies(guess, y, torch.ones(1, 3)).tolist() == [0]


def found_failure(distance: torch.Tensor, y: torch.Tensor, present: torch.Tensor) -> float:
    """Of one run, all of whose samples are real."""
    return float(
        metrics.prototype_failure(
            distance[None], y[None], torch.ones(1, len(y)) > 0, present[None]
        )[0]
    )


def failures(distance: torch.Tensor, y: list[int], present: list[bool]) -> float:
    """The paper's sentence, pair by pair."""
    failed = pairs = 0
    for j, there in enumerate(present):
        for first, second in product(range(len(y)), repeat=2):
            if there and y[first] == j and y[second] != j:
                pairs += 1
                failed += bool(distance[first, j] > distance[second, j])
    return failed / pairs


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps", [3, 10**6])
def test_prototype_failure_is_the_share_of_such_pairs(seed: int, steps: int) -> None:
    """With three distances there are ties almost everywhere: none of them is a failure."""
    generator = torch.Generator().manual_seed(seed)
    distance = torch.randint(steps, (30, 5), generator=generator).float()
    y = torch.randint(4, (30,), generator=generator)  # nobody holds class 4
    present = torch.tensor([True, True, False, True, True])
    expected = failures(distance, y.tolist(), present.tolist())
    assert 0 < expected < 1
    assert found_failure(distance, y, present) == pytest.approx(expected)


def test_prototype_failure_by_hand() -> None:
    distance = torch.tensor(
        [[1.0, 9], [3, 9], [2, 5], [0, 6]]
    )  # classes 0, 0, 1, 1: 3 of 4 pairs of 0, none of 1
    y = torch.tensor([0, 0, 1, 1])
    assert found_failure(distance, y, torch.tensor([True, True])) == 3 / 8
    assert found_failure(distance, y, torch.tensor([True, False])) == 3 / 4
    assert isnan(found_failure(distance, y, torch.tensor([False, False])))
    assert isnan(found_failure(distance[:2], y[:2], torch.tensor([True, True])))


def test_prototype_failure_of_runs_is_each_ones_alone_and_padding_is_no_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    distance = torch.rand(3, 30, 5, generator=generator)
    y = torch.randint(4, (3, 30), generator=generator)
    present = torch.rand(3, 5, generator=generator) > 0.2
    real = torch.arange(30) < torch.tensor([[30], [20], [11]])
    distance[~real] = -1  # nearer than any, if it counted
    found = metrics.prototype_failure(distance, y, real, present)
    for r, count in enumerate((30, 20, 11)):
        expected = failures(distance[r, :count], y[r, :count].tolist(), present[r].tolist())
        assert found[r] == pytest.approx(expected)


def test_clients_whose_prototypes_are_nothing_or_whose_features_are_alike_have_collapsed() -> None:
    """With one class to tell, alike is healthy; padding of a healthy client does not count."""
    nothing = torch.zeros(4, 2)
    alike = torch.tensor([[1.0, 0.5]] * 4)
    healthy = torch.eye(2).repeat(2, 1)
    alike[0, 0] += 0.02
    padded = torch.cat([alike[:3], healthy[:1] * 9])
    c = torch.stack([healthy, alike, alike, healthy, padded])
    p = torch.stack(
        [nothing, alike, alike, alike, padded]
    )  # pooled prototypes may be alike where the features are not
    weight = torch.ones(5, 4)
    weight[4, 3] = 0
    assert metrics.collapsed(c, p, weight, torch.tensor([3, 3, 1, 3, 3])).tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_silhouette_by_hand() -> None:
    """On a line, 0 and 1 of one class, 10 and 12 of another: 1 − a/b for each."""
    vectors = torch.tensor([[0.0], [1], [10], [12]])
    y = torch.tensor([0, 0, 1, 1])
    expected = np.mean([1 - 1 / 11, 1 - 1 / 10, 1 - 2 / 9.5, 1 - 2 / 11.5])
    assert metrics.silhouette(vectors, y, seed=0) == pytest.approx(expected)


def test_silhouette_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(3, size=60), [5])  # class 5 is one vector alone
    vectors = torch.from_numpy(rng.normal(size=(61, 3)).astype(np.float32))
    y = torch.from_numpy(labels)
    vectors[:, 0] += y
    found = metrics.silhouette(vectors, y, seed=0)
    assert found == pytest.approx(silhouette_score(vectors, y), rel=1e-5)
    assert found == pytest.approx(
        metrics.silhouette(vectors, y, seed=2**40 + 1)
    )  # the seed only thins


@pytest.mark.parametrize("y", [[0, 0, 0], [0, 1, 2]])
def test_silhouette_needs_two_classes_and_a_class_of_two(y: list[int]) -> None:
    assert isnan(metrics.silhouette(torch.eye(3), torch.tensor(y), seed=0))


def test_silhouette_of_many_samples_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_SILHOUETTE_SAMPLES", 100)
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(2, size=1000))
    vectors = torch.from_numpy(rng.normal(size=(1000, 2)).astype(np.float32)) + 3 * y[:, None]
    found = [metrics.silhouette(vectors, y, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert found[0] == pytest.approx(silhouette_score(vectors, y), abs=0.1)
