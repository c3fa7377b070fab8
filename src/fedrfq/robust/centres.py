"""The centre of a class's uploads, by several rules: readings of Eq. 9, and robust ones.

All of them are exact, on integers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads


def weighted(uploads: Uploads) -> Ints:
    """Return the mean weighted by numbers of samples; the weights sum to 1."""
    return _mean(uploads, uploads.counts_KJ, 1)


def mean(uploads: Uploads) -> Ints:
    """Return the mean in which every holder counts alike, as in FedProto's code."""
    return _mean(uploads, uploads.held_KJ.astype(np.int64), 1)


def paper(uploads: Uploads) -> Ints:
    """Return the letter of Eq. 9: the weighted mean, divided by the number of holders once more.

    That shrinks it toward 0.
    """
    return _mean(uploads, uploads.counts_KJ, uploads.held_KJ.sum(0))


def median(uploads: Uploads) -> Ints:
    """Return the median, value by value; for an even number, the mean of the middle two."""
    return _middle(uploads, lambda holders: (holders - 1) // 2)


def trimmed(uploads: Uploads) -> Ints:
    """Return the mean without the lowest third and the highest third, value by value."""
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
    sums_JV = np.einsum("kj,kjv->jv", weights_KJ, uploads.values_KJV)
    # A class without holders has sums of 0: dividing by 1 there leaves them.
    mean_JV: Ints = sums_JV // np.maximum(total_J, 1)[:, None]
    return mean_JV


def _middle(uploads: Uploads, cut: Callable[[int], int]) -> Ints:
    """Return the mean, value by value, without the `cut(holders)` lowest and highest."""
    centres_JV = np.zeros(uploads.values_KJV.shape[1:], np.int64)
    for j, held_K in enumerate(uploads.held_KJ.T):
        holders = int(held_K.sum())
        if not holders:
            continue
        ordered = np.sort(uploads.values_KJV[held_K, j], axis=0)
        middle = ordered[cut(holders) : holders - cut(holders)]
        centres_JV[j] = middle.sum(0) // len(middle)
    return centres_JV
