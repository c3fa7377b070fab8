"""Other caps of claimed sample counts than the one that detectors have, as a plugin.

They are tried beside counts that are believed and counts that are limited as by all detectors
(`fedrfq/robust/detectors/counts.py`): nobody is dropped, only counts are cut.

    fedrfq robustness bench/counts.toml --plugin bench/counts.py --no-models
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

import fedrfq
from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.detectors.counts import lower_medians
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.distances import isqrt

_LIARS = 4


def _medians(counts_KJ: Ints) -> Ints:
    """Return the counts cut to the lower median of each class's holders, as version 0.1 did."""
    cut_KJ: Ints = np.minimum(counts_KJ, lower_medians(counts_KJ))
    return cut_KJ


def _quantiles(counts_KJ: Ints) -> Ints:
    """Return the counts cut to the 85 % quantile of each class's holders."""
    ordered_KJ = np.sort(counts_KJ, axis=0)
    holders_J = (counts_KJ > 0).sum(0)
    # Those without the class come first. The quantile is the ⌈0.85 h⌉-th of the h holders.
    place_J = len(counts_KJ) - holders_J + (85 * holders_J + 99) // 100 - 1
    found_J: Ints = np.take_along_axis(ordered_KJ, np.minimum(place_J, len(counts_KJ) - 1)[None], 0)
    cut_KJ: Ints = np.minimum(counts_KJ, found_J)
    return cut_KJ


def _geometric(counts_KJ: Ints) -> Ints:
    """Return the counts cut to √(P · M).

    P is the largest class of any client after the liars', M the median of the class's holders.
    """
    large = np.sort(counts_KJ.max(1))[-1 - _LIARS]
    cut_KJ: Ints = np.minimum(counts_KJ, isqrt(large * np.minimum(lower_medians(counts_KJ), large)))
    return cut_KJ


_CAPS: Mapping[str, Callable[[Ints], Ints]] = {
    "median": _medians,
    "quantile": _quantiles,
    "geometric": _geometric,
}


@fedrfq.register("detector", "counts")
@dataclass(frozen=True)
class Counts(NoDetection):
    """Drops nobody, and cuts counts by one of these caps."""

    cap: str = option("median", "How counts are cut", one_of(_CAPS))

    def admitted(self, uploads: Uploads) -> Uploads:
        """Return the uploads with their counts cut."""
        return replace(uploads, counts_KJ=_CAPS[self.cap](uploads.counts_KJ))
