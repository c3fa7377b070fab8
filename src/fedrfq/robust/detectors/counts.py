"""How many samples may count: claimed counts are weights, and nobody can check them.

A client with many samples should outweigh one with a single sample, and a liar's million should not
outweigh everybody. Counts of one class say little: a class may have three holders, two of whom lie.
So clients are compared over all classes, where honest ones are many and each has one vote:

- T is the largest number of samples in all, and P the largest number of one class, that a client
  claims, after the m largest claims of each kind, where m bounds the malicious clients.
- Who claims more than T samples in all has all its counts reduced in proportion. Then what is more
  than P in one class is cut.

At most m claims are lies. So T is no more than some honest client has in all, and P no more than
some honest client has of one class: a liar weighs no more than honest clients do. These lose only
what the m largest of them have more than the next. A liar may still put all its T samples into one
class, up to P, as an honest client may that holds nothing else: only values tell these two apart.
"""

from __future__ import annotations

import numpy as np

from fedrfq.prototypes.fixed_point import Ints


def capped(counts_KJ: Ints, malicious: int) -> Ints:
    """Return the counts, cut to what may count if there are so many malicious clients at most.

    No count becomes 0. Products have at most 20 + 36 bits, as there are at most 2¹⁶ classes.
    """
    total_K = counts_KJ.sum(1)
    if not total_K.any():
        return counts_KJ
    most = _largest_after(total_K, malicious)
    most_of_one_class = _largest_after(counts_KJ.max(1), malicious)
    scaled_KJ = np.maximum(counts_KJ * most // np.maximum(total_K, 1)[:, None], counts_KJ > 0)
    fair_KJ = np.where((total_K > most)[:, None], scaled_KJ, counts_KJ)
    cut_KJ: Ints = np.minimum(fair_KJ, most_of_one_class)
    return cut_KJ


def _largest_after(claims_K: Ints, malicious: int) -> int:
    """Return the largest claim after so many; with too few clients, the smallest."""
    claims = np.sort(claims_K[claims_K > 0])[::-1]
    return int(claims[min(malicious, len(claims) - 1)])


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
