"""What the classes and counts of uploads reveal, without any of their values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fedrfq.prototypes.fixed_point import Ints


@dataclass(frozen=True)
class CountFigures:
    """How many clients somebody can tell apart who knows what they hold."""

    clients: int
    # Clients with a set of classes, or with counts, that no other client has.
    unique_by_classes: int
    unique_by_counts: int
    # The chance to name the right client, given its set of classes, or its counts.
    named_by_classes: float
    named_by_counts: float
    # Classes of a client with one sample: their mean is the sample's own vector.
    single_samples: int
    class_rows: int


def count_figures(counts_KJ: Ints) -> CountFigures:
    """Return what the counts of all clients reveal."""
    by_classes = Counter(tuple(row) for row in (counts_KJ > 0).tolist())
    by_counts = Counter(tuple(row) for row in counts_KJ.tolist())
    clients = len(counts_KJ)
    return CountFigures(
        clients=clients,
        unique_by_classes=_alone(by_classes),
        unique_by_counts=_alone(by_counts),
        # Of n clients that look alike, a guess is right for one.
        named_by_classes=len(by_classes) / clients,
        named_by_counts=len(by_counts) / clients,
        single_samples=int((counts_KJ == 1).sum()),
        class_rows=int((counts_KJ > 0).sum()),
    )


def _alone(groups: Counter[tuple[int, ...]]) -> int:
    return sum(size == 1 for size in groups.values())
