"""BFT-detect with the mean over a client's classes in place of the sum, so that holding many is no offence.

A client's score is the mean L2 distance of its prototypes to its classes' global ones, the count-weighted means of all
uploads; the ψ clients with the highest are dropped. What it measures from still moves with what the attackers send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.centres import RULES
from fedrfq.robust.detectors.distances import mean_over_classes, to_centres
from fedrfq.robust.detectors.farthest import Farthest


@dataclass(frozen=True)
class BFTMean(Farthest):
    centre: ClassVar[str] = "weighted"

    def scores(self, uploads: Uploads) -> Ints:
        return mean_over_classes(to_centres(uploads, RULES[self.centre](uploads)), uploads)
