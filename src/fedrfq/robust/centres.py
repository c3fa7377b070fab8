"""The centre of a class's uploads, by several rules: Eq. 9 as it can be read, and robust ones. Integers, exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads


def weighted(uploads: Uploads) -> Ints:
    """By samples; the weights sum to 1."""
    return _mean(uploads, uploads.counts_KJ, 1)


def mean(uploads: Uploads) -> Ints:
    """Every holder counts alike, as in FedProto's code."""
    return _mean(uploads, uploads.held_KJ.astype(np.int64), 1)


def paper(uploads: Uploads) -> Ints:
    """The letter of Eq. 9, which divides the weighted mean by the number of holders once more and so shrinks it."""
    return _mean(uploads, uploads.counts_KJ, uploads.held_KJ.sum(0))


def median(uploads: Uploads) -> Ints:
    """Value by value; of an even number of holders the mean of the middle two."""
    return _middle(uploads, lambda holders: (holders - 1) // 2)


def trimmed(uploads: Uploads) -> Ints:
    """Value by value, the mean without the lowest third and the highest third."""
    return _middle(uploads, lambda holders: holders // 3)


RULES: dict[str, Callable[[Uploads], Ints]] = {
    "weighted": weighted,
    "mean": mean,
    "paper": paper,
    "median": median,
    "trimmed": trimmed,
}


def _mean(uploads: Uploads, weights_KJ: Ints, shrink_J: Ints | int) -> Ints:
    total_J = weights_KJ.sum(0) * shrink_J
    found: Ints = (
        np.einsum("kj,kjv->jv", weights_KJ, uploads.values_KJV) // np.maximum(total_J, 1)[:, None]
    )
    return found


def _middle(uploads: Uploads, cut: Callable[[int], int]) -> Ints:
    """The mean of what is left, value by value, when `cut(holders)` are taken off at either end."""
    found = np.zeros(uploads.values_KJV.shape[1:], np.int64)
    for j, held_K in enumerate(uploads.held_KJ.T):
        holders = int(held_K.sum())
        if holders:
            ordered = np.sort(uploads.values_KJV[held_K, j], axis=0)[
                cut(holders) : holders - cut(holders)
            ]
            found[j] = ordered.sum(0) // len(ordered)
    return found
