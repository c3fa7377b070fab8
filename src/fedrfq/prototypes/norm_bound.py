"""How long statistics on a public feature map may be, and how many samples they may claim.

Every sample's features are clipped to a norm C before anything is averaged. So a class mean has a
norm of at most C, and the second moments, E[x·xᵀ], a Frobenius norm of at most C². Both are checked
on the integers of a message, with as much slack as rounding to the grid may have added.

Detectors do not compare second moments, so their weight must not be free: every row of them counts
the samples of all classes together, and all of them are there or, without samples, none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedrfq.prototypes.fixed_point import FRACTION_BITS, MAX_COUNT, Ints, Precision


@dataclass(frozen=True)
class NormBound:
    """The largest sums of squares: of one class mean's integers, and of all moments' together.

    The first `classes` rows of an upload are class means, and the others second moments.
    """

    norm: float
    classes: int
    largest_mean: int
    largest_moments: int

    @staticmethod
    def of(norm: float, classes: int, moments: int, values: int, precision: Precision) -> NormBound:
        """Return the bound for features clipped to this norm, and rows of so many values."""
        exact = Fraction(norm)
        return NormBound(
            norm,
            classes,
            _largest(exact, values, precision),
            _largest(exact**2, moments * values, precision),
        )

    def problem(self, counts_J: Ints, values_JV: Ints) -> str | None:
        """Return what exceeds the bound, or None if nothing does."""
        # A row's squares fit into 64 bits, those of all rows together may not.
        squares = np.einsum("jv,jv->j", values_JV, values_JV).tolist()
        for number, square in enumerate(squares[: self.classes]):
            if square > self.largest_mean:
                return (
                    f"the mean of class {number} has the norm {_length(square):g}: features are"
                    f" clipped to {self.norm:g}"
                )
        moments = sum(squares[self.classes :])
        if moments > self.largest_moments:
            return (
                f"the second moments have the norm {_length(moments):g}: of features clipped to"
                f" {self.norm:g} they have at most {self.norm**2:g}"
            )
        samples = int(moment_count(counts_J[: self.classes]))
        for count in counts_J[self.classes :].tolist():
            if count != samples:
                return f"second moments of {count} samples: those of its classes are {samples}"
        return None


def moment_count(counts_J: Ints) -> Ints:
    """Return the count of a row of second moments, by the samples of the classes (last axis)."""
    count: Ints = np.minimum(counts_J.sum(-1), MAX_COUNT)
    return count


def _largest(norm: Fraction, values: int, precision: Precision) -> int:
    """Return the largest sum of squares of so many rounded values whose norm was at most this.

    Rounding moves each value by half a step at most. Rational numbers, so that all servers agree.
    """
    root = math.isqrt(max(values - 1, 0)) + 1  # √values, rounded up
    slack = Fraction(root * precision.step, 2)
    return math.floor((norm * (1 << FRACTION_BITS) + slack) ** 2)


def _length(square: int) -> float:
    return math.sqrt(square) / (1 << FRACTION_BITS)
