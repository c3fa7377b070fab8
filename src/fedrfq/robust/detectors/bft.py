"""BFT-detect, by the letter of the FedRFQ paper.

Section "BFT-detect", prototype quality detection.

The detector computes the global prototypes of all uploads together (Eq. 9, with weights that sum to
1). A client's discrepancy is the L2 distance of each of its prototypes to that of its class, summed
over its classes. The ψ clients with the largest discrepancy are dropped. Counts are believed, since
the paper does not limit them.

Known weakness: the sum grows with the number of classes a client holds, so honest clients with many
classes are dropped first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust import centres
from fedrfq.robust.detectors.detector import CLIP
from fedrfq.robust.detectors.farthest import Farthest
from fedrfq.robust.distances import to_centres


@dataclass(frozen=True)
class BFT(Farthest):
    """Drops the ψ clients with the largest summed distance from the weighted means."""

    exact: ClassVar[bool] = True

    clip: bool = option(False, CLIP)

    def scores(self, uploads: Uploads) -> Ints:
        summed_K: Ints = to_centres(uploads, centres.weighted(uploads)).sum(1)
        return summed_K
