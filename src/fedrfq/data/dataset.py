"""A dataset as the rest of the program sees it: labelled images in memory, train and test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Labelled images, split into train and test.

    Images are uint8 in N×C×H×W; labels run from 0 to len(classes) − 1; groups are writer ids
    where they are known.
    """

    name: str
    train_x: NDArray[np.uint8]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of values scaled to [0, 1]
    std: tuple[float, ...]
    sha256: str  # of the arrays' contents; recorded with every run
    train_groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.train_x.shape
        return channels, height, width
