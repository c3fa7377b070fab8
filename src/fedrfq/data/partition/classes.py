"""The paper's partition: each client holds a few classes, and as many samples of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.dealing import Counts, deal
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.errors import UserError
from fedrfq.files.options import check_ranges, option


@dataclass(frozen=True)
class Classes:
    """Each client holds about `ways` classes, and `shots` training samples of each.

    `draw` "uniform" takes FedProto's range, max(2, ways − spread) to min(J, ways + spread);
    "normal" rounds a normal number of mean `ways` and standard deviation `spread`, clipped to 1 to
    J. Clients share no training samples unless `share`; test samples may always be shared.
    """

    ways: int = option(3, "Classes that a client holds on average", "1 to the dataset's classes")
    spread: int = option(
        2,
        "How far a client's number of classes may be from ways: half-range or deviation, by draw",
        "0 or more",
    )
    shots: int = option(100, "Training samples of each class that a client holds", "1 or more")
    test_shots: int = option(40, "Test samples of each class that a client holds", "1 or more")
    draw: str = option(
        "uniform", "Distribution of the number of classes a client holds", "one of uniform, normal"
    )
    share: bool = option(False, "Whether several clients may hold the same training sample")

    def __post_init__(self) -> None:
        check_ranges("partition", self)

    def simplest(self) -> Classes:
        """Return the partition with the smallest spread that draws the same numbers of classes."""
        if self.draw != "uniform":
            return self
        low, high = self._range()
        ways = (low + high) // 2
        return replace(self, ways=ways, spread=high - ways)

    def _range(self) -> tuple[int, int]:
        """Return the fewest and the most classes that a uniform draw gives a client."""
        high = self.ways + self.spread
        return min(high, max(2, self.ways - self.spread)), high

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples; equal generators give equal partitions."""
        total = len(dataset.classes)
        if self.ways > total:
            raise UserError(
                f"partition.ways = {self.ways} exceeds the {total} classes of {dataset.name}; "
                f"set it to at most {total}"
            )
        self._check_rarest(dataset, dataset.train_y, "training", "shots")
        self._check_rarest(dataset, dataset.test_y, "test", "test_shots")
        counts = Counts(
            train=lambda left_J: self.shots * self._held_J(total, rng),
            test=lambda count_J, available_J: self.test_shots * (count_J > 0),
        )
        return deal(dataset, clients, rng, self.share, counts)

    def _held_J(self, total: int, rng: Generator) -> Ints:
        """Draw the classes of a client: 1 for those it holds, 0 for the others."""
        held_J = np.zeros(total, np.int64)
        held_J[rng.choice(total, self._number(total, rng), replace=False)] = 1
        return held_J

    def _number(self, total: int, rng: Generator) -> int:
        """Draw how many classes a client holds."""
        if self.draw == "normal":
            return int(np.clip(np.rint(rng.normal(self.ways, self.spread)), 1, total))
        low, high = self._range()
        return int(rng.integers(min(total, low), min(total, high), endpoint=True))

    def _check_rarest(self, dataset: Dataset, labels: Ints, part: str, name: str) -> None:
        """Check that every class has enough samples, whichever classes a seed draws."""
        shots = getattr(self, name)
        counts = np.bincount(labels, minlength=len(dataset.classes))
        rarest = int(counts.argmin())
        if not counts[rarest]:
            raise UserError(
                f"class {dataset.classes[rarest]!r} of {dataset.name} has no {part} samples; "
                "add some, or remove the class"
            )
        if counts[rarest] < shots:
            raise UserError(
                f"class {dataset.classes[rarest]!r} of {dataset.name} has {counts[rarest]} {part} "
                f"samples, fewer than partition.{name} = {shots}; "
                f"set it to at most {counts[rarest]}"
            )
