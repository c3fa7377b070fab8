"""Class proportions from a Dirichlet distribution.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019: where a class is used up, the proportions of the others are scaled up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.dealing import Counts, Exhausted, check_samples, deal
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.files.options import check_ranges, option


@dataclass(frozen=True)
class Dirichlet:
    """Each client draws class proportions from Dir(`alpha`), then `samples` samples by them.

    Test samples follow the proportions of the client's training samples.
    """

    alpha: float = option(
        0.5,
        "Concentration of the Dirichlet distribution: the smaller, the more clients differ",
        "above 0",
    )
    samples: int = option(300, "Training samples of each client", "1 or more")
    test_samples: int = option(100, "Test samples of each client", "1 or more")
    share: bool = option(False, "Whether several clients may hold the same training sample")

    def __post_init__(self) -> None:
        check_ranges("partition", self)

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples; equal generators give equal partitions."""
        check_samples(dataset, self.samples)
        alphas = np.full(len(dataset.classes), self.alpha)

        def train(left_J: Ints) -> Ints:
            return _apportion(self.samples, rng.dirichlet(alphas), left_J, rng)

        def test(count_J: Ints, available_J: Ints) -> Ints:
            return _apportion(self.test_samples, count_J / count_J.sum(), available_J, rng)

        return deal(dataset, clients, rng, self.share, Counts(train, test))


def _apportion(total: int, proportions: NDArray[np.float64], left_J: Ints, rng: Generator) -> Ints:
    """Draw the class counts of `total` samples by `proportions`, at most those left."""
    if total > left_J.sum():
        raise Exhausted
    count_J = np.zeros_like(left_J)
    # What exceeds a class is drawn again from the others, until nothing is missing.
    while (missing := total - count_J.sum()) > 0:
        room_J = left_J - count_J
        weights = np.where(room_J > 0, proportions, 0.0)
        if weights.sum() == 0:  # the classes left have proportions too small for a float
            weights = room_J.astype(np.float64)
        count_J += np.minimum(rng.multinomial(missing, weights / weights.sum()), room_J)
    return count_J
