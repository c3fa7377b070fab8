"""example-detector: drops the client whose values are farthest from the median of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedrfq
from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.centres import CENTRES, FULL
from fedrfq.robust.detectors import Detector, State, Verdict


@fedrfq.register("detector", "example-detector")
@dataclass(frozen=True)
class ExampleDetector(Detector):
    """Scores a client by its mean absolute distance from the median, over the classes it sent."""

    # It uses integers alone: no floats, no clock, no randomness. Only then may several servers
    # decide by it. `fedrfq check` looks whether it is true.
    exact: ClassVar[bool] = True

    drop: int = option(1, "Clients to drop in a round", "0 or more")

    # K clients, J classes, V values. What it remembers goes from state to state.
    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        """Return what to remember, and the verdict on each client."""
        full_KJ = np.where(uploads.held_KJ, FULL, 0)
        median_JV = CENTRES["median"](uploads, full_KJ)
        far_KJ = np.abs(uploads.values_KJV - median_JV).sum(2) * uploads.held_KJ
        score_K = far_KJ.sum(1) // np.maximum(uploads.held_KJ.sum(1), 1)
        # Ties go by the client's number, never by its row: rows come in any order.
        worst_K = np.lexsort((np.array(uploads.clients, np.int64), -score_K))
        kept_K = np.ones(len(score_K), np.bool_)
        kept_K[worst_K[: self.drop]] = False
        # Who sent nothing is never dropped.
        kept_K |= ~uploads.held_KJ.any(1)
        return state, Verdict.of_kept(uploads, kept_K, score_K)
