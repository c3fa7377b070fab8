"""Drops uploads whose class means are farther off than their numbers of samples explain.

Ours, for statistics on a public feature map. There the means of honest clients for one class differ
by sampling: n samples' mean lies about √(t/n) from the class's true mean, where t is the spread of
single samples. So n·d², with d the distance from the median of the class's uploads, is about t for
every honest upload. What is `limit` times as much as usual is dropped.

A liar can buy room by claiming few samples, but then its weight is small as well: with n samples it
may pull the sum of the class by √(n·limit·t) at most. Counts need no clipping for that reason.

What is usual is the median over clients of each one's own median, so that a client who claims many
classes has one vote like everybody else. A class of fewer than three holders is not judged: of two
that differ, nobody can say which one lies. Sites whose samples really differ look like liars, the
more samples they have: raise `limit` for them.

Of many samples, means differ by less than a step of a coarse grid. Most uploads then equal the
median, and nothing at all would be usual. So what is usual is at least two values that were rounded
the other way.

Clients may add noise for their samples' privacy. Its scale is known, and what it does to an upload
of n samples and to the median of the class is added to what is usual for that upload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.centres import median
from fedrfq.robust.detectors.counts import lower_medians
from fedrfq.robust.detectors.detector import (
    CLIP,
    Detector,
    Reason,
    State,
    Verdict,
)
from fedrfq.robust.distances import typical
from fedrfq.robust.honest_noise import SPARE_BITS, noise_squares

_MIN_HOLDERS = 3
_PERCENT = 100
_MAX_LIMIT = 1_000_000
_MAX_SCORE = 2**62
# Values of a class mean that may always have been rounded the other way.
_ROUNDED_VALUES = 2


@dataclass(frozen=True)
class Sampling(Detector):
    """Drops a client if one of its classes is too far off; the score is the ratio in percent."""

    exact: ClassVar[bool] = True
    knows_noise: ClassVar[bool] = True

    clip: bool = option(False, CLIP)
    limit: int = option(
        700,
        "How far off a class mean may be: squared distance times samples, in percent of the usual",
        f"101 to {_MAX_LIMIT}",
    )

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        spread_KJ = _spreads(uploads)
        judged_KJ = uploads.held_KJ & (uploads.held_KJ.sum(0) >= _MIN_HOLDERS)
        noise_KJ = _noise(uploads)
        sampled_KJ = np.maximum(spread_KJ - noise_KJ, 0)
        usual = typical(sampled_KJ[judged_KJ], np.nonzero(judged_KJ)[0])
        usual_KJ = np.maximum(_rounding(uploads), max(usual, 1)) + noise_KJ
        # Python's whole numbers have no end: a spread may have 62 bits before it is multiplied.
        percent_KJ = _PERCENT * np.where(judged_KJ, spread_KJ, 0).astype(object) // usual_KJ
        score_K = np.minimum(percent_KJ.max(1, initial=0), _MAX_SCORE).astype(np.int64)
        kept_K = score_K <= self.limit
        # A client is dropped whole; which of its classes are too far off is said.
        too_far_KJ = (percent_KJ > self.limit).astype(np.bool_)
        reason_KJ = np.where(too_far_KJ, Reason.SAMPLING, Reason.OTHER_CLASS)
        return state, Verdict.of_kept(uploads, kept_K, score_K, reason_KJ)


def _spreads(uploads: Uploads) -> Ints:
    """Return n·d² of every upload and class; 0 for classes that a client does not hold."""
    difference_KJV = uploads.values_KJV - median(uploads)
    square_KJ = np.einsum("kjv,kjv->kj", difference_KJV, difference_KJV)
    spread_KJ: Ints = (square_KJ >> SPARE_BITS) * uploads.counts_KJ
    return spread_KJ


def _rounding(uploads: Uploads) -> Ints:
    """Return n·d² of uploads that differ from the median by a step in a few values.

    Claims of more samples than those of the class's median holder buy nothing.
    """
    square = _ROUNDED_VALUES * uploads.precision.step**2 >> SPARE_BITS
    most_J = lower_medians(uploads.counts_KJ)
    rounding_KJ: Ints = square * np.minimum(uploads.counts_KJ, most_J)
    return rounding_KJ


def _noise(uploads: Uploads) -> Ints:
    """Return n·d² of uploads that differ from the median by what noise does to both."""
    square_KJ = noise_squares(uploads)
    # That of the median is no more than that of the class's median holder.
    median_J = np.where(square_KJ.any(0), lower_medians(square_KJ), 0)
    noise_KJ: Ints = (square_KJ + median_J) * uploads.counts_KJ
    return noise_KJ
