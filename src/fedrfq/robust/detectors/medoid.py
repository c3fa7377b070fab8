"""Medoid: who is far from its neighbours is dropped. The score of Krum, class by class.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
NeurIPS 2017.

Of a class's n holders, each is scored by its distances to the n − ψ − 2 nearest other holders (at
least one). The ψ clients with the highest scores are dropped.

Departures: Krum sums squared distances and keeps a single vector. Here the score in a class is the
root of their mean, so that classes with more holders do not weigh more; the score of a client is
the mean over its classes; and all but ψ clients are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.detectors.farthest import Farthest
from fedrfq.robust.distances import Points, isqrt, mean_over_classes


@dataclass(frozen=True)
class Medoid(Farthest):
    """Drops the ψ clients that are farthest from their nearest neighbours."""

    exact: ClassVar[bool] = True

    def scores(self, uploads: Uploads) -> Ints:
        score_KJ = np.zeros(uploads.counts_KJ.shape, np.int64)
        for j, held_K in enumerate(uploads.held_KJ.T):
            score_KJ[held_K, j] = self._class_scores(uploads.values_KJV[held_K, j])
        return mean_over_classes(score_KJ, uploads)

    def _class_scores(self, values_NV: Ints) -> Ints:
        """Return the scores of a class's holders; a lone holder has nobody to be compared with."""
        holders = len(values_NV)
        if holders < 2:
            return np.zeros(holders, np.int64)
        neighbours = max(holders - self.psi - 2, 1)
        points = Points.of(values_NV)
        ordered_NN = np.partition(points.squares_to(points), neighbours, axis=1)
        # One more than the neighbours, since each holder's distance of 0 to itself is among them.
        nearest_NN = ordered_NN[:, : neighbours + 1]
        # Divided before the sum, because the sum of many squares may not fit 64 bits.
        return isqrt((nearest_NN // neighbours).sum(1))
