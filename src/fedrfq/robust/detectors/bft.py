"""BFT-detect, by the letter of the FedRFQ paper (Section "BFT-detect", prototype quality detection).

The global prototypes of all uploads together are computed (Eq. 9, weights that sum to 1); a client's discrepancy is the
L2 distance of each of its prototypes to its class's, summed over its classes; the ψ clients with the largest are dropped.

Known weakness: the sum grows with the number of classes a client holds, so honest clients with many classes are dropped
first. Counts are believed, since the paper says nothing of limiting them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust import centres
from fedrfq.robust.detectors.distances import to_centres
from fedrfq.robust.detectors.farthest import Farthest


@dataclass(frozen=True)
class BFT(Farthest):
    clip: bool = option(
        False, "Whether claimed sample counts are cut to the median of the class's holders"
    )

    def scores(self, uploads: Uploads) -> Ints:
        summed_K: Ints = to_centres(uploads, centres.weighted(uploads)).sum(1)
        return summed_K
