"""Distances between prototypes, exact on integers.

Nothing overflows: 65,535 squares of differences below 2²¹ add up to less than 2⁵⁸.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import LIMIT, Ints, Uploads

# float64 holds all whole numbers up to here: sums of whole numbers that stay below are exact, in
# whatever order a BLAS adds them.
_EXACT = 2**53
# No distance counts as smaller where one is divided by another: 1/256.
LEAST = 64


def isqrt(squares: Ints) -> Ints:
    """Return the whole part of the square root, exactly, of numbers below 2⁶².

    float64 is off by less than 2⁻²² there: it can reach the next whole number, but not fall below
    one that is the root.
    """
    root = np.sqrt(squares.astype(np.float64)).astype(np.int64)
    root -= root * root > squares
    return root


def to_centres(uploads: Uploads, centres_JV: Ints) -> Ints:
    """Return every client's distance to the centre of each class it holds, 0 for the others."""
    difference_KJV = uploads.values_KJV - centres_JV
    square_KJ = np.einsum("kjv,kjv->kj", difference_KJV, difference_KJV)
    distance_KJ: Ints = isqrt(square_KJ) * uploads.held_KJ
    return distance_KJ


def mean_over_classes(score_KJ: Ints, uploads: Uploads) -> Ints:
    """Return the mean over the classes each client holds; 0 for one that holds none."""
    mean_K: Ints = (score_KJ * uploads.held_KJ).sum(1) // np.maximum(uploads.held_KJ.sum(1), 1)
    return mean_K


@dataclass(frozen=True)
class Points:
    """Prototypes as whole numbers in float64, for fast and still exact products.

    Prototypes of more than 2¹³ values are shifted down so that sums of products stay exact: the
    last bit or two of each value is lost.
    """

    values_NV: NDArray[np.float64]
    square_N: Ints
    shift: int

    @staticmethod
    def of(values_NV: Ints) -> Points:
        """Return the prototypes, shifted down by as few bits as needed."""
        width = values_NV.shape[1]
        shift = next(bits for bits in range(21) if width * (LIMIT >> bits) ** 2 <= _EXACT)
        if shift:  # which is rare: the usual prototypes are spared a pass over all values
            values_NV = values_NV >> shift
        floats_NV = values_NV.astype(np.float64)
        square_N = np.einsum("nv,nv->n", floats_NV, floats_NV).astype(np.int64)
        return Points(floats_NV, square_N, shift)

    def squares_to(self, others: Points) -> Ints:
        """Return the squared distances from each point to each of the others."""
        product_NM = (self.values_NV @ others.values_NV.T).astype(np.int64)
        return (self.square_N[:, None] + others.square_N - 2 * product_NM) << 2 * self.shift


def lower_median(values: Ints) -> int:
    """Return the median: the lower of the middle two of an even number, and 0 of none."""
    if not len(values):
        return 0
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def typical(values_N: Ints, client_N: Ints) -> int:
    """Return the median over clients of each one's own median: one client, one vote; 0 of none."""
    order = np.lexsort((values_N, client_N))
    _, first, counts = np.unique(client_N[order], return_index=True, return_counts=True)
    return lower_median(values_N[order][first + (counts - 1) // 2])
