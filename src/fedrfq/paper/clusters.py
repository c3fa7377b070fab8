"""Clusters of prototypes compared with their classes: k-means sees the vectors, not the labels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusterPair:
    """Two classes, and the share of their samples that lie in a cluster of the other class."""

    first: int
    second: int
    share: float


@dataclass(frozen=True)
class Clustered:
    """Vectors in as many clusters as there are classes, ordered by each cluster's majority class.

    `classes` are the classes that occur in `y_N`, ascending.
    """

    vectors_NV: Floats
    y_N: Ints
    cluster_N: Ints
    classes: Ints

    def counts(self) -> Ints:
        """Count the samples of each class in each cluster: clusters × classes."""
        counts_CJ = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(counts_CJ, (self.cluster_N, np.searchsorted(self.classes, self.y_N)), 1)
        return counts_CJ

    def majority(self) -> Ints:
        """Return each cluster's most frequent class."""
        majority_C: Ints = self.classes[self.counts().argmax(1)]
        return majority_C

    def purity(self) -> float:
        """Return the share of samples that belong to the majority class of their cluster."""
        return float(self.counts().max(1).sum() / len(self.y_N))

    def adjusted_rand(self) -> float:
        """Return the adjusted Rand index of clusters and classes: 1 if equal, 0 as by chance."""
        from sklearn.metrics import adjusted_rand_score

        return float(adjusted_rand_score(self.y_N, self.cluster_N))

    def confused(self, limit: int) -> list[ClusterPair]:
        """Return at most `limit` pairs of classes, those that share clusters the most first."""
        guess_N = self.majority()[self.cluster_N]
        pairs = [self._pair(int(a), int(b), guess_N) for a, b in combinations(self.classes, 2)]
        confused = [pair for pair in pairs if pair.share]
        return sorted(confused, key=lambda pair: -pair.share)[:limit]

    def _pair(self, a: int, b: int, guess_N: Ints) -> ClusterPair:
        crossed = ((self.y_N == a) & (guess_N == b)) | ((self.y_N == b) & (guess_N == a))
        return ClusterPair(a, b, float(crossed.sum() / np.isin(self.y_N, (a, b)).sum()))

    def flat(self) -> Floats:
        """Return the vectors' first two principal components."""
        from sklearn.decomposition import PCA

        components_N2: Floats = PCA(2, svd_solver="full").fit_transform(self.vectors_NV)
        return components_N2


def clustered(vectors_NV: Floats, y_N: Ints, seed: int) -> Clustered:
    """Cluster the vectors by k-means, and order the clusters by their majority class."""
    from sklearn.cluster import KMeans

    classes = np.unique(y_N)
    kmeans = KMeans(len(classes), n_init=10, random_state=seed)
    cluster_N = kmeans.fit_predict(vectors_NV).astype(np.int64)
    unordered = Clustered(vectors_NV, y_N, cluster_N, classes)
    # k-means numbers clusters arbitrarily. The inner argsort lists them by majority class, the
    # outer one inverts that list: it gives each old number its new one.
    new_number = np.argsort(np.argsort(unordered.majority(), kind="stable"), kind="stable")
    return Clustered(vectors_NV, y_N, new_number[cluster_N], classes)
