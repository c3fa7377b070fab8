"""A train/test split fixed by the images themselves, so that no library's random stream can move it."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError


def by_content(
    images: NDArray[np.uint8], labels: NDArray[np.int64], test_share: float, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted train and test indices: of every class, the images with the smallest sha256 are the test images.

    Rounded to whole images, at least one and never all of a class; a class of one image is an error.
    """
    order = np.array(
        sorted(range(len(images)), key=lambda i: hashlib.sha256(images[i].tobytes()).digest())
    )
    test = [
        _head(order[labels[order] == label], test_share, what, label) for label in np.unique(labels)
    ]
    chosen = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(images)), chosen), chosen


def _head(order: NDArray[np.int64], share: float, what: str, label: int) -> NDArray[np.int64]:
    if len(order) < 2:
        raise UserError(
            f"{what}: expected at least 2 images of class number {label}, found {len(order)}; add some"
        )
    return order[: min(max(1, round(share * len(order))), len(order) - 1)]
