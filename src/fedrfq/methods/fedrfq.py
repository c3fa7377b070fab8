"""FedRFQ exchanges pooled class prototypes.

Yan et al., "FedRFQ: Prototype-Based Federated Learning with Reduced Redundancy, Minimal Failure,
…".

A sample's feature vector C is seen as a 2D map and pooled by SoftPool to P (Eq. 6-8). The decision
layer takes C; the prototype loss and the exchange take P. A client minimises cross-entropy plus λ
times the L2 distance between P and the global prototype of the sample's class (Eq. 10-11), and
uploads the mean P of each class (the inputs of Eq. 9).

Departures, each with an option that restores the paper's letter:
- `reduction = "samples"` takes the mean distance over the batch. The letter (`"classes"`) sums the
  means of the classes, so the pull grows with the classes in a batch, and training collapses.
- `aggregate = "weighted"` has weights that sum to 1. The letter (`"paper"`) divides by the number
  of holders once more and shrinks the prototypes toward 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.files.options import one_of, option
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.method import Batch
from fedrfq.robust.rules import RULES

REDUCTIONS = ("samples", "classes")


@dataclass(frozen=True)
class FedRFQ(FedProto):
    """Prototype exchange with pooled prototypes and the plain L2 distance."""

    aggregate: str = option(
        "weighted",
        "Rule by which uploaded prototypes become the global one; paper is Eq. 9 as printed",
        one_of(RULES, plugins=True),
    )
    reduction: str = option(
        "samples",
        "Prototype loss: mean over a batch's samples, or sum of its classes' means (Eq. 10-11)",
        one_of(REDUCTIONS),
    )

    pool: ClassVar[Mapping[str, Any]] = {}
    pools: ClassVar[bool] = True

    @property
    def is_mean_of_samples(self) -> bool:
        # A sample alone is its class's mean, so the two reductions would be one.
        return self.reduction == "samples"

    def distance(self, difference_KBV: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(difference_KBV, dim=-1)
        return norm

    def reduce(self, batch: Batch, distance_KB: Tensor) -> Tensor:
        if self.reduction == "samples":
            return batch.mean(distance_KB)
        # Dividing each distance by the size of its class in the batch sums the classes' means.
        member_KBJ = F.one_hot(batch.y_KB, batch.logits_KBJ.shape[2]) * batch.weight_KB[..., None]
        size_KB = member_KBJ.sum(1).gather(1, batch.y_KB)
        return (distance_KB * batch.weight_KB / size_KB.clamp_min(1)).sum(1)
