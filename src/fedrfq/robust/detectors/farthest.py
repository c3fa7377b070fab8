"""Detectors that know how many to drop: the ψ clients with the highest scores.

Of equal scores, the client with the lower number is dropped first.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.detectors.detector import Detector, Reason, State, Verdict


@dataclass(frozen=True)
class Farthest(Detector):
    """Drops ψ clients every round, or all if there are no more; classes then keep their globals."""

    psi: int = option(1, "Number of clients dropped every round (ψ)", "0 or more")

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        score_K = self.scores(uploads)
        worst_first = np.lexsort((np.array(uploads.clients, np.int64), -score_K))
        kept_K = np.ones(len(score_K), np.bool_)
        kept_K[worst_first[: self.psi]] = False
        return state, Verdict.of_kept(uploads, kept_K, score_K, Reason.FARTHEST)

    @abstractmethod
    def scores(self, uploads: Uploads) -> Ints:
        """Return how bad each client's upload looks."""
