"""How far noise alone moves the class means of honest clients, who add it for privacy."""

from __future__ import annotations

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads

# Squares lose so many bits, which are far below a value's rounding, to leave room for counts.
SPARE_BITS = 16
# No squared distance that counts is larger, and a count of 2²⁰ times it still fits 64 bits.
_MOST = 1 << 42


def noise_squares(uploads: Uploads) -> Ints:
    """Return the mean square of what noise does to each class mean, without its lowest bits.

    It is 0 where nobody adds noise, and for classes that a client did not send. The noise of a sum
    is always the same, so that of a mean is the smaller, the more samples it claims.
    """
    if uploads.noise is None:
        return np.zeros_like(uploads.counts_KJ)
    square = uploads.noise.usual_square(uploads.values_KJV.shape[2])
    # Python's whole numbers have no end.
    counts_KJ = np.maximum(uploads.counts_KJ, 1).astype(object)
    mean_KJ = np.minimum((square >> SPARE_BITS) // counts_KJ**2, _MOST).astype(np.int64)
    return np.where(uploads.held_KJ, mean_KJ, 0)
