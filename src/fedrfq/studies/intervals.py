"""Means over seeds with 95 % intervals by Student's t, and differences paired over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A sample's mean, its standard deviation (n − 1) and half the width of the mean's interval.

    A single value has neither a standard deviation nor an interval.
    """

    count: int
    mean: float
    std: float | None
    half: float | None


@dataclass(frozen=True)
class Difference(Spread):
    """One sample minus another over the same seeds; undecided if the interval contains 0."""

    verdict: str


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are present, or None if there are none."""
    present = [value for value in values if value is not None]
    if present:
        return statistics.fmean(present)
    return None


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return the spread of the values that are present, or None if there are none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    middle = statistics.fmean(present)
    count = len(present)
    if count == 1:
        return Spread(1, middle, None, None)
    std = statistics.stdev(present)
    return Spread(count, middle, std, quantile(count - 1) * std / math.sqrt(count))


def difference(
    ones: Sequence[float | None],
    others: Sequence[float | None],
    *,
    lower_is_better: bool = False,
) -> Difference | None:
    """Return the paired difference of two samples, leaving out pairs with a missing value."""
    pairs = zip(ones, others, strict=True)
    differences = spread(
        [one - other for one, other in pairs if one is not None and other is not None]
    )
    if differences is None:
        return None
    return Difference(**vars(differences), verdict=_verdict(differences, lower_is_better))


def _verdict(differences: Spread, lower_is_better: bool) -> str:
    if differences.half is None or abs(differences.mean) <= differences.half:
        return "undecided"
    if (differences.mean < 0) == lower_is_better:
        return "better"
    return "worse"


@cache
def quantile(freedom: int) -> float:
    """Return the t for which CONFIDENCE of Student's distribution lies between −t and t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    # Both tails are cut off, so the upper end stands at (1 + CONFIDENCE) / 2.
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
