"""Far from one's neighbours: the score of Krum, class by class.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017. Of a class's n
holders, each is scored by its n − ψ − 2 nearest other holders (one at least); the ψ clients with the highest are dropped.

Departures: Krum sums squared distances and keeps a single vector. Here the score of a class is the root of their mean, so
that classes with more holders do not weigh more, a client's is the mean over its classes, and all but ψ are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.detectors.distances import Points, isqrt, mean_over_classes
from fedrfq.robust.detectors.farthest import Farthest


@dataclass(frozen=True)
class Medoid(Farthest):
    def scores(self, uploads: Uploads) -> Ints:
        score_KJ = np.zeros(uploads.counts_KJ.shape, np.int64)
        for j, held_K in enumerate(uploads.held_KJ.T):
            score_KJ[held_K, j] = self._of_class(uploads.values_KJV[held_K, j])
        return mean_over_classes(score_KJ, uploads)

    def _of_class(self, values_NV: Ints) -> Ints:
        """A lone holder has nobody to be compared with."""
        holders = len(values_NV)
        if holders < 2:
            return np.zeros(holders, np.int64)
        nearest = max(holders - self.psi - 2, 1)
        points = Points.of(values_NV)
        nearest_NN = np.partition(points.squares_to(points), nearest, axis=1)[
            :, : nearest + 1
        ]  # 0, to itself, among them
        return isqrt((nearest_NN // nearest).sum(1))  # divided first: a sum of many may not fit
