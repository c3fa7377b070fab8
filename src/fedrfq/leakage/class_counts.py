"""What the classes and counts of uploads reveal, without any of their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.leakage.roc import Floats
from fedrfq.prototypes.fixed_point import Ints


@dataclass(frozen=True)
class CountFigures:
    """How many clients somebody tells apart who sees what they upload, and knows what they hold.

    The guess is the client that holds what is nearest to an upload: with noise, nobody's is equal.
    """

    clients: int
    # Clients that are named for certain by their set of classes, or by their counts.
    unique_by_classes: int
    unique_by_counts: int
    # The chance to name the right client, given its set of classes, or its counts.
    named_by_classes: float
    named_by_counts: float
    # Classes of a client with one sample: their mean is the sample's own vector.
    single_samples: int
    class_rows: int


def count_figures(held_KJ: Ints, noisy_KJ: Ints | None = None) -> CountFigures:
    """Return what uploads reveal of clients that hold so many samples of each class.

    With noise they have sent other counts, and classes of which they may hold none. Clients without
    any class have sent nothing.
    """
    sent_KJ = held_KJ if noisy_KJ is None else noisy_KJ
    chance_by_classes_K = _chances(held_KJ > 0, sent_KJ > 0)
    chance_by_counts_K = _chances(held_KJ, sent_KJ)
    return CountFigures(
        clients=len(held_KJ),
        unique_by_classes=int((chance_by_classes_K == 1).sum()),
        unique_by_counts=int((chance_by_counts_K == 1).sum()),
        named_by_classes=_mean(chance_by_classes_K),
        named_by_counts=_mean(chance_by_counts_K),
        # A mean with noise in it is nobody's vector.
        single_samples=int((held_KJ == 1).sum()) if noisy_KJ is None else 0,
        class_rows=int((sent_KJ > 0).sum()),
    )


def _mean(chance_K: Floats) -> float:
    return float(chance_K.sum() / max(len(chance_K), 1))


def _chances(held_KJ: NDArray[Any], sent_KJ: NDArray[Any]) -> Floats:
    """Return the chance that each client who sent anything is the one that is guessed."""
    apart_KKJ = sent_KJ[:, None].astype(np.float64) - held_KJ[None]
    square_KK = (apart_KKJ**2).sum(-1)
    nearest_KK = square_KK == square_KK.min(1, keepdims=True)
    # Of n clients that are as near, a guess is right for one.
    chance_K: Floats = np.diagonal(nearest_KK) / nearest_KK.sum(1)
    return chance_K[sent_KJ.any(1)]
