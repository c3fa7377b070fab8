"""Statistics of classes as rows of an upload: what comes back is the federation's covariance."""

from __future__ import annotations

import pytest
import torch

from fedrfq.prototypes.class_statistics import (
    class_rows,
    covariance,
    moment_rows,
    packed,
    statistics,
    unpacked,
)
from fedrfq.prototypes.fixed_point import MAX_COUNT


def test_means_and_counts_by_hand() -> None:
    vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
    counts, means = class_rows(vectors, torch.tensor([0, 0, 2]), 3)
    assert counts.tolist() == [2, 0, 1]
    assert means.tolist() == [[2, 3], [0, 0], [10, 0]]


def test_covariance_by_hand() -> None:
    # About their means, class 0 has (−1, −1) and (1, 1), and the lone sample of class 2 has 0.
    vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
    labels = torch.tensor([0, 0, 2])
    _, means = class_rows(vectors, labels, 3)
    assert torch.allclose(covariance(vectors, labels, means), torch.full((2, 2), 2 / 3).double())


@pytest.mark.parametrize("values", [1, 2, 3, 8, 9])
def test_what_is_packed_comes_back(values: int) -> None:
    half = torch.arange(values * values).double().view(values, values)
    matrix = half + half.mT
    rows = packed(matrix)
    assert rows.shape == (moment_rows(values), values)
    assert torch.equal(unpacked(rows), matrix)


def test_clients_rows_weighted_by_counts_are_the_covariance_of_all_samples() -> None:
    """Servers average rows by counts, and know nothing of covariances."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(30, 4, generator=generator).double()
    labels = torch.arange(30) % 2
    parts = [slice(0, 12), slice(12, 30)]
    uploads = [statistics(vectors[part], labels[part], 2, moments=True) for part in parts]
    counts, values = zip(*uploads, strict=True)
    weights = torch.stack(counts)[..., None]
    mean = (torch.stack(values) * weights).sum(0) / weights.sum(0)
    # Each client's samples are centred on its own means, as it does not know the others'.
    own = [
        covariance(vectors[part], labels[part], means[:2])
        for part, means in zip(parts, values, strict=True)
    ]
    expected = (12 * own[0] + 18 * own[1]) / 30
    assert torch.allclose(unpacked(mean[2:]), expected)


def test_without_moments_there_are_rows_of_classes_only() -> None:
    counts, values = statistics(torch.ones(3, 5), torch.tensor([0, 1, 1]), 4, moments=False)
    assert counts.tolist() == [1, 2, 0, 0]
    assert values.shape == (4, 5)


def test_moments_of_very_many_samples_count_as_many_as_a_message_can_carry() -> None:
    y_N = torch.arange(MAX_COUNT + 2) % 2
    counts_R, _ = statistics(torch.zeros(len(y_N), 1), y_N, 2, moments=True)
    assert counts_R.tolist() == [MAX_COUNT // 2 + 1, MAX_COUNT // 2 + 1, MAX_COUNT]
