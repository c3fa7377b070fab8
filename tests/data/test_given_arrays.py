"""Datasets made of arrays, tensors and torch datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedrfq.data import Dataset, load
from fedrfq.data.client_data import normalised
from fedrfq.errors import UserError

RANDOM = np.random.default_rng(3)
X = RANDOM.integers(0, 256, (10, 3, 8, 6), np.uint8)
Y = np.array([0, 1] * 5)
TEST = (X[:4], Y[:4])


def test_the_same_pixels_are_the_same_data_however_they_are_given(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", train_x=X, train_y=Y, test_x=X[:4], test_y=Y[:4])
    stored = Dataset.from_npz(tmp_path / "own.npz")
    assert stored == stored
    assert stored.source == str(tmp_path / "own.npz")
    channels_last = X.transpose(0, 2, 3, 1)
    tensors = (torch.from_numpy(X), torch.from_numpy(Y))
    given = [
        Dataset.from_arrays(X, Y, TEST),
        Dataset.from_arrays(channels_last.astype(np.int64), Y, (channels_last[:4], Y[:4])),
        Dataset.from_arrays(*tensors, (tensors[0][:4], tensors[1][:4])),
        Dataset.from_torch(TensorDataset(*tensors), TensorDataset(tensors[0][:4], tensors[1][:4])),
    ]
    assert {one.sha256 for one in given} == {stored.sha256}
    assert given[0].source == "given:arrays"
    assert given[0].train_x.dtype == np.uint8


def test_other_numbers_reach_models_as_they_are() -> None:
    rows = np.array([[1.0, -10.0], [2.0, 10.0], [3.0, -10.0], [4.0, 10.0]])
    data = Dataset.from_arrays(rows, [0, 1, 0, 1], (rows, [0, 1, 0, 1]))
    assert data.shape == (2, 1, 1)
    seen = normalised(torch.from_numpy(data.train_x), data.mean, data.std)[:, :, 0, 0]
    expected = (rows - rows.mean(0)) / rows.std(0)
    assert np.allclose(seen, expected, atol=1e-6)


def test_labels_may_be_words_and_groups_anything() -> None:
    data = Dataset.from_arrays(
        X,
        np.where(Y, "dog", "cat"),
        (X[:2], ["dog", "dog"]),
        groups=["b", "a"] * 5,
        test_groups=["b", "b"],
    )
    assert data.classes == ("cat", "dog")
    assert data.train_y.tolist() == Y.tolist()
    assert data.test_y.tolist() == [1, 1]
    assert data.train_groups is not None
    assert data.train_groups.tolist() == [1, 0] * 5
    assert data.test_groups is not None
    assert data.test_groups.tolist() == [1, 1]


def test_a_fifth_is_kept_for_testing_where_no_test_is_given() -> None:
    data = Dataset.from_arrays(X, Y, groups=range(10))
    assert (len(data.train_y), len(data.test_y)) == (8, 2)
    assert data.train_groups is not None
    assert data.test_groups is not None
    assert sorted([*data.train_groups, *data.test_groups]) == list(range(10))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((9, 7, 3), (3, 9, 7)),
        ((3, 9, 7), (3, 9, 7)),
        ((1, 9, 3), (1, 9, 3)),
        ((9, 9, 4), (4, 9, 9)),
        ((4, 9, 9), (4, 9, 9)),
        ((9, 9, 9), (9, 9, 9)),
        ((9, 7, 4), (9, 7, 4)),
    ],
)
def test_channels_may_be_last(given: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert Dataset.from_arrays(np.zeros((10, *given)), Y).shape == expected


def test_tensors_of_types_that_numpy_lacks_are_taken() -> None:
    x = torch.rand(10, 4)
    data = Dataset.from_arrays(x.bfloat16(), Y)
    assert data.sha256 == Dataset.from_arrays(x.bfloat16().float(), Y).sha256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": X.astype(str)}, "array of numbers"),
        ({"x": X[:0]}, "found none"),
        ({"x": [[1, 2], [3]]}, "all of one size"),
        ({"x": [[1.0], [np.nan], [np.inf]]}, "NaN.* in 2 of 3 samples, first in sample 1"),
        ({"y": [*["cat"] * 9, None]}, "a label for each sample, found None for sample 9"),
        ({"groups": [*[1.0] * 9, np.nan]}, "a group for each sample, found nan for sample 9"),
        ({"x": X[None]}, "found shape"),
        ({"test": (X / 255, Y)}, "of one kind"),
        ({"y": Y[:3]}, "expected 10 labels"),
        ({"y": Y * 0.5}, "whole number or text"),
        ({"y": np.where(Y, "dog", "cat"), "classes": ["cat", "hen"]}, "'dog' is none"),
        ({"y": Y + 1, "classes": ["cat", "dog"]}, "number the classes"),
        ({"groups": [1, 2]}, "expected 10 groups"),
    ],
)
def test_what_cannot_be_used_is_told(change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Dataset.from_arrays(**{"x": X, "y": Y, **change})  # type: ignore[arg-type]


def test_a_torch_dataset_without_pairs_is_told() -> None:
    with pytest.raises(UserError, match="pairs of an image"):
        Dataset.from_torch(TensorDataset(torch.from_numpy(X)))


def test_given_data_cannot_be_loaded_by_name() -> None:
    with pytest.raises(UserError, match=r"'arrays' were given .* fedrfq.resume"):
        load("given:arrays")
