"""Means over seeds with 95 % intervals by Student's t, and differences paired over the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A sample's mean, its standard deviation (n − 1), and half the width of the mean's interval; none of one value."""

    count: int
    mean: float
    std: float | None
    half: float | None


@dataclass(frozen=True)
class Difference(Spread):
    """One minus the other, over the same seeds; undecided where the interval holds 0."""

    verdict: str


def spread(values: Sequence[float | None]) -> Spread | None:
    """Of the values that are there; nothing of none."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    mean = statistics.fmean(found)
    if len(found) == 1:
        return Spread(1, mean, None, None)
    std = statistics.stdev(found)
    return Spread(len(found), mean, std, quantile(len(found) - 1) * std / math.sqrt(len(found)))


def difference(ones: Sequence[float | None], others: Sequence[float | None]) -> Difference | None:
    """Of values that belong together; pairs of which one is missing do not count."""
    pairs = zip(ones, others, strict=True)
    found = spread([one - other for one, other in pairs if one is not None and other is not None])
    if found is None:
        return None
    return Difference(**vars(found), verdict=_verdict(found))


def _verdict(found: Spread) -> str:
    if found.half is None or abs(found.mean) <= found.half:
        return "undecided"
    if found.mean > 0:
        return "better"
    return "worse"


@cache
def quantile(freedom: int) -> float:
    """Of Student's t: what holds CONFIDENCE of it between itself and its negative."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
