"""Train/test splits fixed by the images themselves.

Unlike seeded ones, they cannot change with a library's random number generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError

# The share of samples that are tested on, where nobody has split them.
TEST_SHARE = 0.2
# Hashed before an image that decides for itself. By the hash of `by_content`, none would be tested
# on of pictures that were the training part of a dataset such as mnist5k: it took the smallest.
_EACH_ALONE = b"each image alone"
Indices = NDArray[np.int64]
# Returns sorted train and test indices of images with these labels. It is given the share that is
# tested on, and what the images are, for errors.
Split = Callable[[NDArray[Any], Indices, float, str], tuple[Indices, Indices]]


def by_content(
    images: NDArray[Any], labels: Indices, test_share: float, what: str
) -> tuple[Indices, Indices]:
    """Return sorted train and test indices; the test images of a class have the smallest hashes.

    `test_share` of every class is rounded to whole images, at least one and never all of them. A
    class of one image is an error.
    """
    # Equal images have equal hashes; sorting is stable, so the file order decides.
    hashes = _hashes(images)
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


def by_each_image(
    images: NDArray[Any], labels: Indices, test_share: float, what: str
) -> tuple[Indices, Indices]:
    """Return sorted train and test indices; an image is tested on if its own hash is small.

    So one image more or less moves no other one, as privacy needs it. `test_share` of the images
    are tested on only roughly, and a class may have none to train on, or none to test.
    """
    below = round(test_share * (1 << 256))
    hashes = _hashes(images, _EACH_ALONE)
    tested_N = np.array([int.from_bytes(digest, "big") < below for digest in hashes])
    if tested_N.all() or not tested_N.any():
        part = "train on" if tested_N.all() else "test"
        raise UserError(
            f"{what}: each image decides by its own hash whether it is trained on or tested, and of"
            f" {len(images)} there is none to {part}; add some, or split them into train and test"
        )
    return np.flatnonzero(~tested_N), np.flatnonzero(tested_N)


def _hashes(images: NDArray[Any], before: bytes = b"") -> list[bytes]:
    return [hashlib.sha256(before + image.tobytes()).digest() for image in images]
