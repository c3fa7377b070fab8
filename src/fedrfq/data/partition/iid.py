"""Independent and identically distributed clients: samples drawn uniformly."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.dealing import Counts, Exhausted, check_samples, deal
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.files.options import check_ranges, option


@dataclass(frozen=True)
class Iid:
    """Each client holds `samples` training samples, drawn uniformly.

    Its test samples are drawn uniformly from the classes it holds.
    """

    samples: int = option(300, "Training samples of each client", "1 or more")
    test_samples: int = option(100, "Test samples of each client", "1 or more")
    share: bool = option(False, "Whether several clients may hold the same training sample")

    def __post_init__(self) -> None:
        check_ranges("partition", self)

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples; equal generators give equal partitions."""
        check_samples(dataset, self.samples)
        counts = Counts(
            train=lambda left_J: uniform(self.samples, left_J, rng),
            test=lambda count_J, available_J: uniform(self.test_samples, available_J, rng),
        )
        return deal(dataset, clients, rng, self.share, counts)


def uniform(total: int, left_J: Ints, rng: Generator) -> Ints:
    """Draw the class counts of `total` samples, taken without repetition from those left."""
    if total > left_J.sum():
        raise Exhausted
    return rng.multivariate_hypergeometric(left_J, total)
