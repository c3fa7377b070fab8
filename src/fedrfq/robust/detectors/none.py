"""No detection, the baseline: every upload is kept, and counts are believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.detectors.detector import CLIP, Detector, State, Verdict


@dataclass(frozen=True)
class NoDetection(Detector):
    """Keeps every upload, with a score of 0."""

    exact: ClassVar[bool] = True
    knows_noise: ClassVar[bool] = True

    clip: bool = option(False, CLIP)

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        clients = len(uploads.clients)
        everyone_K = np.ones(clients, np.bool_)
        return state, Verdict.of_kept(uploads, everyone_K, np.zeros(clients, np.int64))
