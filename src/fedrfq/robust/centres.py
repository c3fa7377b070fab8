"""The centre of a class's uploads, by several rules: readings of Eq. 9, and robust ones.

All of them are exact, on integers. An upload of a class counts with a weight of 0 to FULL; without
weights, every upload counts in full. Weights that are all alike change nothing.

Nothing overflows with up to MAX_UPLOADS clients: see `_mean`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads

# The weight of an upload that counts in full.
FULL = 1024
# The most clients whose uploads are combined: sums of more might not fit 64 bits.
MAX_UPLOADS = 2**22
# Values are summed in two parts: the lowest bits, and the rest.
_LOW_BITS = 10


def weighted(uploads: Uploads, weight_KJ: Ints | int = FULL) -> Ints:
    """Return the mean weighted by numbers of samples; the weights sum to 1."""
    return _mean(uploads, uploads.counts_KJ * weight_KJ)


def mean(uploads: Uploads, weight_KJ: Ints | int = FULL) -> Ints:
    """Return the mean in which every holder counts alike, as in FedProto's code."""
    return _mean(uploads, uploads.held_KJ * weight_KJ)


def paper(uploads: Uploads, weight_KJ: Ints | int = FULL) -> Ints:
    """Return the letter of Eq. 9: the weighted mean, divided by the number of holders once more.

    That shrinks it toward 0. Holders without any weight are not counted.
    """
    holders_J = (uploads.held_KJ * weight_KJ > 0).sum(0)
    # Rounding down twice is rounding down once: ⌊⌊a/b⌋/c⌋ = ⌊a/(bc)⌋.
    shrunk_JV: Ints = weighted(uploads, weight_KJ) // np.maximum(holders_J, 1)[:, None]
    return shrunk_JV


def median(uploads: Uploads, weight_KJ: Ints | int = FULL) -> Ints:
    """Return the median, value by value; for an even number, the mean of the middle two.

    With weights, it is the mean of what lies in the middle and weighs as much as the heaviest.
    """
    return _middle(uploads, weight_KJ, lambda total, unit: (total - unit) // 2)


def trimmed(uploads: Uploads, weight_KJ: Ints | int = FULL) -> Ints:
    """Return the mean without the lowest third and the highest third, value by value.

    A third is rounded down to a multiple of the heaviest holder's weight.
    """
    return _middle(uploads, weight_KJ, lambda total, unit: total // (3 * unit) * unit)


CENTRES: dict[str, Callable[..., Ints]] = {
    "weighted": weighted,
    "mean": mean,
    "paper": paper,
    "median": median,
    "trimmed": trimmed,
}


def _mean(uploads: Uploads, weights_KJ: Ints) -> Ints:
    """Return the weighted mean of each class, rounded down.

    A weight is at most 2²⁰ samples times 2¹⁰, so that 2²² of them add up to at most 2⁵². Times a
    value of 20 bits that might overflow. So values are v = 2¹⁰·high + low, and with Σwh = q·W + r
    the mean ⌊(2¹⁰·Σwh + Σwl) / W⌋ is 2¹⁰·q + ⌊(2¹⁰·r + Σwl) / W⌋, where 2¹⁰·r + Σwl < 2⁶³.
    """
    assert len(uploads.clients) <= MAX_UPLOADS, f"{len(uploads.clients)} uploads are too many"
    # A class without holders has sums of 0: dividing by 1 there leaves them.
    total_J1 = np.maximum(weights_KJ.sum(0), 1)[:, None]
    high_KJV = uploads.values_KJV >> _LOW_BITS
    low_KJV = uploads.values_KJV & (1 << _LOW_BITS) - 1
    whole_JV, rest_JV = np.divmod(np.einsum("kj,kjv->jv", weights_KJ, high_KJV), total_J1)
    lows_JV = np.einsum("kj,kjv->jv", weights_KJ, low_KJV)
    mean_JV: Ints = (whole_JV << _LOW_BITS) + ((rest_JV << _LOW_BITS) + lows_JV) // total_J1
    return mean_JV


def _middle(uploads: Uploads, weight_KJ: Ints | int, cut: Callable[[int, int], int]) -> Ints:
    """Return the mean, value by value, less so much of the weight at either end.

    `cut` gives that weight, of the total weight of a class and the weight of its heaviest holder.
    """
    weights_KJ = uploads.held_KJ * weight_KJ
    centres_JV = np.zeros(uploads.values_KJV.shape[1:], np.int64)
    for j, weight_K in enumerate(weights_KJ.T):
        weighing = np.flatnonzero(weight_K)
        if not len(weighing):
            continue
        values_NV = uploads.values_KJV[weighing, j]
        weight_N = weight_K[weighing]
        unit = int(weight_N.max())
        if weight_N.min() == unit:
            centres_JV[j] = _middle_of_equals(values_NV, cut(len(weighing), 1))
        else:
            centres_JV[j] = _weighted_middle(values_NV, weight_N, cut(int(weight_N.sum()), unit))
    return centres_JV


def _middle_of_equals(values_NV: Ints, cut: int) -> Ints:
    """Return the mean without the `cut` lowest and highest values: fast, and the usual case."""
    middle_MV = np.sort(values_NV, axis=0)[cut : len(values_NV) - cut]
    mean_V: Ints = middle_MV.sum(0) // len(middle_MV)
    return mean_V


def _weighted_middle(values_NV: Ints, weight_N: Ints, cut: int) -> Ints:
    """Return the mean without the lowest and highest values that weigh `cut`."""
    order_NV = np.argsort(values_NV, axis=0, kind="stable")
    ordered_NV = np.take_along_axis(values_NV, order_NV, axis=0)
    ends_NV = np.cumsum(weight_N[order_NV], axis=0)
    starts_NV = ends_NV - weight_N[order_NV]
    last = int(weight_N.sum()) - cut
    # Of each value, the part of its weight that lies between the two cuts.
    taken_NV = np.maximum(np.minimum(ends_NV, last) - np.maximum(starts_NV, cut), 0)
    mean_V: Ints = (taken_NV * ordered_NV).sum(0) // (last - cut)
    return mean_V
