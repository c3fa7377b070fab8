"""A train/test split fixed by the images themselves.

Unlike a seeded one, it cannot change with a library's random number generator.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError


def by_content(
    images: NDArray[Any], labels: NDArray[np.int64], test_share: float, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted train and test indices; the test images of a class have the smallest hashes.

    `test_share` of every class is rounded to whole images, at least one and never all of them. A
    class of one image is an error.
    """
    # Equal images have equal hashes; sorting is stable, so the file order decides.
    hashes = [hashlib.sha256(image.tobytes()).digest() for image in images]
    order = np.array(sorted(range(len(images)), key=hashes.__getitem__))
    chosen = []
    for label in np.unique(labels):
        candidates = order[labels[order] == label]
        if len(candidates) < 2:
            raise UserError(
                f"{what}: expected at least 2 images of class number {label} (one to train on, "
                f"one to test), found {len(candidates)}; add some"
            )
        count = max(1, round(test_share * len(candidates)))
        chosen.append(candidates[: min(count, len(candidates) - 1)])
    test = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(images)), test), test
