"""How many samples may count: claimed counts are weights, and nobody can check them.

An honest client with many samples should outweigh one with a single sample, and a liar's million
should not outweigh everybody. So counts of a class are cut to √(P · M), where

- P is what a large honest client may have. Each client has one vote, its largest claim for any
  class, and P is the largest vote after the first m, where m bounds the malicious clients. At most
  m votes are lies, so P is no more than some honest client has, however small the class is.
- M is what is usual in the class: the (lower) median of its holders' counts, at most P.

The cap lies between the two by their ratio: of counts that are 100 at most and 4 in the class's
middle, 20. Where all holders have alike, nothing is cut. Where liars are most of a class's holders,
they set its median, but the cap is never above P.
"""

from __future__ import annotations

import numpy as np

from fedrfq.prototypes.fixed_point import Ints
from fedrfq.robust.detectors.distances import isqrt


def capped(counts_KJ: Ints, malicious: int) -> Ints:
    """Return the counts, cut to what may count if there are so many malicious clients at most."""
    if not counts_KJ.any():
        return counts_KJ
    votes = np.sort(counts_KJ.max(1))[::-1]
    votes = votes[votes > 0]
    # With too few clients to leave out m, the smallest vote is the safest.
    large = votes[min(malicious, len(votes) - 1)]
    usual_J = np.minimum(lower_medians(counts_KJ), large)
    cut_KJ: Ints = np.minimum(counts_KJ, isqrt(large * usual_J))
    return cut_KJ


def lower_medians(counts_KJ: Ints) -> Ints:
    """Return the (lower) median of each class's counts over its holders.

    It is above every count where a class has no holder.
    """
    nothing = np.iinfo(np.int64).max
    if not len(counts_KJ):
        return np.full(counts_KJ.shape[1], nothing)
    # Clients that do not hold a class are sorted to the end, out of the median's way.
    ordered_KJ = np.sort(np.where(counts_KJ > 0, counts_KJ, nothing), axis=0)
    middle_J = np.maximum((counts_KJ > 0).sum(0) - 1, 0) // 2
    median_J: Ints = ordered_KJ[middle_J, np.arange(counts_KJ.shape[1])]
    return median_J
