"""How well a score tells members from others: AUC, and the hits at few false alarms.

Intervals are bootstrapped over groups of targets. Targets of one client share an upload, so they
are drawn together. Drawn one by one, the intervals would be too narrow where clients leak more or
less, and too wide where all scores of a client are merely higher or lower.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# The share of false alarms at which hits are counted.
FALSE_ALARMS = 0.01
_RESAMPLES = 400
# The percentiles between which 95 % of the resamples lie.
_ENDS = (2.5, 97.5)


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Roc:
    """An attack's success: 0.5 of AUC and 0.01 of hits are those of a coin."""

    members: int
    others: int
    auc: Estimate
    hits: Estimate  # the true-positive rate at FALSE_ALARMS false positives


@dataclass(frozen=True)
class Scored:
    """The attacker's scores of all targets, whether each is a member, and its group."""

    score_N: Floats
    member_N: Bools
    group_N: Ints

    @staticmethod
    def joined(parts: list[Scored]) -> Scored:
        """Return the targets of all parts together."""
        return Scored(
            np.concatenate([part.score_N for part in parts]),
            np.concatenate([part.member_N for part in parts]),
            np.concatenate([part.group_N for part in parts]),
        )

    def roc(self, rng: Generator) -> Roc:
        """Return the success over all targets, with intervals."""
        order_N = np.argsort(-self.score_N, kind="stable")
        # Where a score differs from the one before it, a threshold can stand.
        score_N = self.score_N[order_N]
        ends_E = np.append(np.flatnonzero(np.diff(score_N)), len(score_N) - 1)
        member_N = self.member_N[order_N]
        groups, group_N = np.unique(self.group_N[order_N], return_inverse=True)
        value = _success(np.ones(len(score_N)), member_N, ends_E)
        draws = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), _RESAMPLES)
        found = [_success(drawn[group_N].astype(float), member_N, ends_E) for drawn in draws]
        # A resample may have no members or nobody else: it says nothing.
        ends_22 = np.nanpercentile(np.array(found), _ENDS, axis=0)
        auc, hits = (Estimate(value[i], *ends_22[:, i].tolist()) for i in range(2))
        members = int(member_N.sum())
        return Roc(members, len(member_N) - members, auc, hits)


def _success(weight_N: Floats, member_N: Bools, ends_E: Ints) -> tuple[float, float]:
    """Return AUC and hits of targets that are sorted from the highest score to the lowest.

    `ends_E` has the last place of every score, so that equal scores are decided together.
    """
    hits_E = np.cumsum(weight_N * member_N)[ends_E]
    alarms_E = np.cumsum(weight_N * ~member_N)[ends_E]
    if not hits_E[-1] or not alarms_E[-1]:
        return np.nan, np.nan
    hits_E = np.append(0.0, hits_E / hits_E[-1])
    alarms_E = np.append(0.0, alarms_E / alarms_E[-1])
    area = float(np.sum(np.diff(alarms_E) * (hits_E[1:] + hits_E[:-1]) / 2))
    allowed = alarms_E <= FALSE_ALARMS + 1e-12
    return area, float(hits_E[allowed].max())
