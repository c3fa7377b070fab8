"""How long statistics on a public feature map may be, and how many samples they may claim.

Every sample's features are clipped to a norm C before anything is averaged. So a class mean has a
norm of at most C. The second moments are the samples' covariance about the means of their classes:
its trace is at most C² less the mean square of these means, and no covariance has a Frobenius norm
above its trace. Both are checked on the integers of a message, with as much slack as rounding to
the grid may have added.

Where clients add noise for their samples' privacy, a mean may be as much longer as that noise
explains: its scale is known, and an honest upload is practically never refused.

Detectors do not compare second moments, so their weight must not be free: every row of them counts
the samples of all classes together, and all of them are there or, without samples, none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from fedrfq.prototypes.fixed_point import FRACTION_BITS, MAX_COUNT, Ints, Precision
from fedrfq.prototypes.noise_scale import NoiseScale

_ONE = 1 << FRACTION_BITS


@dataclass(frozen=True)
class NormBound:
    """The largest class means and second moments, in units of a message's integers.

    The first `classes` rows of an upload are class means, and the others second moments. Slack is
    how far rounding may move a row, or all rows of moments together.
    """

    norm: float
    classes: int
    mean_slack: Fraction
    moment_slack: Fraction
    noise: NoiseScale | None = None
    all_classes: bool = False  # whether a client sends all classes or, with no budget left, none

    @staticmethod
    def of(
        norm: float,
        classes: int,
        moments: int,
        values: int,
        precision: Precision,
        noise: NoiseScale | None = None,
    ) -> NormBound:
        """Return the bound for features clipped to this norm, and rows of so many values."""
        return NormBound(
            norm, classes, _slack(values, precision), _slack(moments * values, precision), noise
        )

    @cached_property
    def largest_mean(self) -> int:
        """The largest sum of squares of a class mean."""
        return math.floor((self._scaled_norm + self.mean_slack) ** 2)

    @property
    def _scaled_norm(self) -> Fraction:
        # Rational numbers, so that all servers agree.
        return Fraction(self.norm) * _ONE

    def problem(self, counts_J: Ints, values_JV: Ints) -> str | None:
        """Return what exceeds the bound, or None if nothing does."""
        sent = int(np.count_nonzero(counts_J[: self.classes]))
        if self.all_classes and 0 < sent < self.classes:
            return f"it has {sent} classes: with noise, clients send all {self.classes}, or none"
        # A row's squares fit into 64 bits, those of all rows together may not.
        squares = np.einsum("jv,jv->j", values_JV, values_JV).tolist()
        for number, square in enumerate(squares[: self.classes]):
            largest = self._largest_mean(int(counts_J[number]), values_JV.shape[1])
            if square > largest:
                return (
                    f"the mean of class {number} has the norm {_length(square):g}: features are"
                    f" clipped to {self.norm:g}{self._with_noise(largest)}"
                )
        samples = int(moment_count(counts_J[: self.classes]))
        for count in counts_J[self.classes :].tolist():
            if count != samples:
                return f"second moments of {count} samples: those of its classes are {samples}"
        moments = sum(squares[self.classes :])
        if not moments:
            return None
        largest = self._largest_moments(counts_J[: self.classes].tolist(), squares)
        if moments > largest:
            return (
                f"the second moments have the norm {_length(moments):g}: of features clipped to"
                f" {self.norm:g}, and with these class means, at most {_length(largest):g}"
            )
        return None

    def _largest_mean(self, count: int, values: int) -> int:
        """Return the largest sum of squares of the mean of so many samples, with noise if any."""
        if self.noise is None or not count:
            return self.largest_mean
        return math.floor((self.noise.longest_mean(count, values) + self.mean_slack) ** 2)

    def _with_noise(self, largest: int) -> str:
        if self.noise is None:
            return ""
        return f", and noise explains {_length(largest):g} at most"

    def _largest_moments(self, counts: list[int], squares: list[int]) -> int:
        """Return the largest sum of squares of the second moments beside these class means."""
        means = Fraction(0)
        for count, square in zip(counts, squares, strict=False):
            # Before it was rounded, the mean may have been shorter.
            shortest = max(math.isqrt(square) - self.mean_slack, Fraction(0))
            means += count * shortest**2
        trace = self._scaled_norm**2 - means / max(sum(counts), 1)
        # A trace has the unit of squares, and is rounded as single values are.
        return math.floor((max(trace, Fraction(0)) / _ONE + self.moment_slack) ** 2)


def moment_count(counts_J: Ints) -> Ints:
    """Return the count of a row of second moments, by the samples of the classes (last axis)."""
    count: Ints = np.minimum(counts_J.sum(-1), MAX_COUNT)
    return count


def _slack(values: int, precision: Precision) -> Fraction:
    """Return how far rounding may move so many values together: each by half a step at most."""
    root = math.isqrt(max(values - 1, 0)) + 1  # √values, rounded up
    return Fraction(root * precision.step, 2)


def _length(square: int) -> float:
    return math.sqrt(square) / _ONE
