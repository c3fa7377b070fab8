"""Clusters of prototypes beside their classes: where k-means, which knows no labels, puts what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusterPair:
    """Two classes, and the share of their samples that lie in a cluster of the other one."""

    first: int
    second: int
    share: float


@dataclass(frozen=True)
class Clustered:
    """As many clusters as there are classes, in the order of the class that most of each are of."""

    vectors_NV: Floats
    y_N: Ints
    cluster_N: Ints
    classes: Ints  # that there are, ascending

    def counts(self) -> Ints:
        """Clusters × classes."""
        found = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(found, (self.cluster_N, np.searchsorted(self.classes, self.y_N)), 1)
        return found

    def majority(self) -> Ints:
        """Each cluster's class."""
        found: Ints = self.classes[self.counts().argmax(1)]
        return found

    def purity(self) -> float:
        """The share of samples that are of their cluster's class."""
        return float(self.counts().max(1).sum() / len(self.y_N))

    def adjusted_rand(self) -> float:
        """How far clusters and classes agree on which samples belong together: 1 entirely, 0 as by chance."""
        from sklearn.metrics import adjusted_rand_score

        return float(adjusted_rand_score(self.y_N, self.cluster_N))

    def confused(self, most: int) -> list[ClusterPair]:
        """The pairs of classes that lie most in each other's clusters."""
        guess_N = self.majority()[self.cluster_N]
        pairs = [self._pair(int(a), int(b), guess_N) for a, b in combinations(self.classes, 2)]
        return sorted((pair for pair in pairs if pair.share), key=lambda pair: -pair.share)[:most]

    def _pair(self, a: int, b: int, guess_N: Ints) -> ClusterPair:
        crossed = ((self.y_N == a) & (guess_N == b)) | ((self.y_N == b) & (guess_N == a))
        return ClusterPair(a, b, float(crossed.sum() / np.isin(self.y_N, (a, b)).sum()))

    def flat(self) -> Floats:
        """The vectors' first two principal components."""
        from sklearn.decomposition import PCA

        flat: Floats = PCA(2, svd_solver="full").fit_transform(self.vectors_NV)
        return flat


def clustered(vectors_NV: Floats, y_N: Ints, seed: int) -> Clustered:
    from sklearn.cluster import KMeans

    classes = np.unique(y_N)
    cluster_N = (
        KMeans(len(classes), n_init=10, random_state=seed).fit_predict(vectors_NV).astype(np.int64)
    )
    found = Clustered(vectors_NV, y_N, cluster_N, classes)
    place = np.argsort(np.argsort(found.majority(), kind="stable"), kind="stable")
    return Clustered(vectors_NV, y_N, place[cluster_N], classes)
