"""A dataset as the rest of the program sees it: labelled images in memory, train and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError

# What `data.name` begins with where the data were given as Python objects.
GIVEN = "given:"
# What it begins with where the data are a dataset of Hugging Face's hub.
HUB = "hf:"


@dataclass(frozen=True)
class Dataset:
    """Labelled images, split into train and test.

    Images are N×C×H×W, uint8 or, where more precise values were given, float32 of 255 × these;
    labels run from 0 to len(classes) − 1; groups are writer ids where they are known.
    """

    name: str
    train_x: NDArray[Any]
    train_y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of values scaled to [0, 1]
    std: tuple[float, ...]
    sha256: str  # of the arrays' contents; recorded with every run
    train_groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None
    origin: str = ""  # the name or path that it can be loaded by; empty if it was given as objects

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.train_x.shape
        return channels, height, width

    def __repr__(self) -> str:
        # Without the arrays: a notebook shows it.
        size = "×".join(map(str, self.shape))
        return (
            f"<dataset {self.name}: {len(self.train_y)} training and {len(self.test_y)} test "
            f"samples of {size}, {len(self.classes)} classes>"
        )

    @property
    def source(self) -> str:
        """What `data.name` says of an experiment on this data."""
        return self.origin or GIVEN + self.name

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        test: tuple[Any, Any] | None = None,
        classes: Sequence[str] | None = None,
        *,
        groups: Any = None,
        test_groups: Any = None,
        name: str = "arrays",
    ) -> Dataset:
        """Return a dataset of numpy arrays or torch tensors.

        `x` are images N×H×W, N×H×W×C or N×C×H×W, or rows of numbers N×F. Whole numbers from 0 to
        255 are pixels; other numbers are taken as they are. Channels are the last dimension where
        that is 1 or 3, or smaller than the two equal ones before it. `y` are labels from 0, or any
        values of which each is a class. Without `test`, a fixed fifth of every class is kept for
        testing.
        `groups` say to whom each sample belongs, for `partition.name = "groups"`.
        """
        from fedrfq.data.given_arrays import from_arrays

        return from_arrays(x, y, test, classes, (groups, test_groups), name)

    @staticmethod
    def from_torch(
        dataset: Any, test: Any = None, classes: Sequence[str] | None = None, name: str = "torch"
    ) -> Dataset:
        """Return a dataset of a torch `Dataset` whose items are pairs of image and label."""
        from fedrfq.data.given_arrays import from_torch

        return from_torch(dataset, test, classes, name)

    @staticmethod
    def from_huggingface(
        dataset: Any,
        image: str = "",
        label: str = "",
        groups: str = "",
        name: str = "huggingface",
        *,
        columns: Sequence[str] = (),
    ) -> Dataset:
        """Return a dataset of a `datasets.Dataset`, or of a `DatasetDict` with a split "train".

        `image`, `label` and `groups` name columns; without them, the first column of images and the
        first of class labels are taken. `columns` are those of numbers where the samples are rows.
        A fifth is kept for testing where there is no test split.
        """
        from fedrfq.data.huggingface import from_huggingface

        return from_huggingface(dataset, image, label, groups, columns, name)

    @staticmethod
    def from_folder(path: Path | str) -> Dataset:
        """Return the pictures of a folder that has a folder for each class."""
        return _at(path)

    @staticmethod
    def from_npz(path: Path | str) -> Dataset:
        """Return the arrays of an .npz file: train_x, train_y, test_x, test_y, and others."""
        return _at(path)


def _at(path: Path | str) -> Dataset:
    from fedrfq.data.library import load

    if not isinstance(path, Path | str):
        raise UserError(f"expected the path of a folder or file, found {path!r:.80}")
    return load(str(Path(path).expanduser().resolve()))


def is_given(name: str) -> bool:
    """Return whether a name is of data that were given as Python objects."""
    return name.startswith(GIVEN)


def is_on_hub(name: str) -> bool:
    """Return whether a name is of a dataset of Hugging Face's hub."""
    return name.startswith(HUB)
