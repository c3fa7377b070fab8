"""The geometric median as an aggregation rule: the point with the least summed distance to all.

Weiszfeld's iteration, as in Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated
Learning", IEEE Transactions on Signal Processing 2022. It is computed in floating point, so it is
not `exact`: one trusted server may use it, and a committee may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import fedrfq
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.rules import Rule
from fedrfq.robust.state import State

_PASSES = 20
_NEAREST = 1.0  # a step of the fixed-point grid: no distance counts as less


@fedrfq.register("rule", "geometric-median")
@dataclass(frozen=True)
class GeometricMedian(Rule):
    """Return the geometric median of each class's uploads, by their weights."""

    exact: ClassVar[bool] = False

    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Any
    ) -> tuple[State, Any]:
        centres_JV = np.zeros(uploads.values_KJV.shape[1:], np.int64)
        for j in range(len(centres_JV)):
            held_K = (uploads.counts_KJ[:, j] > 0) & (weight_KJ[:, j] > 0)
            if held_K.any():
                points_NV = uploads.values_KJV[held_K, j].astype(np.float64)
                centres_JV[j] = np.rint(_median(points_NV, weight_KJ[held_K, j]))
        return state, centres_JV


def _median(points_NV: Any, weight_N: Any) -> Any:
    centre_V = np.average(points_NV, axis=0, weights=weight_N)
    for _ in range(_PASSES):
        distance_N = np.maximum(np.linalg.norm(points_NV - centre_V, axis=1), _NEAREST)
        centre_V = np.average(points_NV, axis=0, weights=weight_N / distance_N)
    return centre_V
