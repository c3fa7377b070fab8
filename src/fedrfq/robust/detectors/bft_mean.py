"""BFT-detect with the mean over a client's classes in place of the sum.

A client's score is the mean L2 distance of its prototypes to the global ones of its classes, which
are the count-weighted means of all uploads. The ψ clients with the highest scores are dropped.

Departure from BFT-detect: because of the mean, clients with many classes do not look worse. The
centres still move with what the attackers send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.centres import CENTRES
from fedrfq.robust.detectors.farthest import Farthest
from fedrfq.robust.distances import mean_over_classes, to_centres


@dataclass(frozen=True)
class BFTMean(Farthest):
    """Drops the ψ clients with the largest mean distance from their classes' centres."""

    exact: ClassVar[bool] = True
    centre: ClassVar[str] = "weighted"  # one of CENTRES

    def scores(self, uploads: Uploads) -> Ints:
        return mean_over_classes(to_centres(uploads, CENTRES[self.centre](uploads)), uploads)
