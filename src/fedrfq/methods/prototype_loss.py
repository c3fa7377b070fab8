"""The loss that methods with prototypes share: cross-entropy plus a pull toward the class's own.

A sample of a class without a prototype has no second term. Where the prototypes come from
(`Method.targets`), and how a sample's distance is measured, is each method's own affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.method import MAX_WEIGHT, Batch, Guide, Method, cross_entropy
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals


@dataclass(frozen=True)
class PrototypeLoss(Method):
    """Cross-entropy plus λ times the distance to the prototype of the sample's class."""

    lam: float = option(1.0, "Weight of the prototype loss (λ)", f"0 to {MAX_WEIGHT:g}")

    carried: ClassVar[tuple[str, ...]] = ("lam",)

    def guide(self, number: int, targets: Globals, own: Params) -> Guide:
        clients = len(next(iter(own.values())))
        values = torch.from_numpy(targets.floats())
        present = torch.from_numpy(targets.present_J).float()
        return {
            "values_KJV": values.expand(clients, -1, -1),
            "present_KJ": present.expand(clients, -1),
            "lam_K": torch.full((clients,), self.lam),
        }

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        classification = batch.mean(cross_entropy(batch))
        class_KBV = batch.y_KB[..., None].expand(-1, -1, guide["values_KJV"].shape[2])
        target_KBV = guide["values_KJV"].gather(1, class_KBV)
        known_KB = guide["present_KJ"].gather(1, batch.y_KB)
        prototype = self.reduce(batch, self.pull(batch.p_KBV, target_KBV) * known_KB)
        return classification + guide["lam_K"] * prototype, classification, prototype

    def pull(self, p_KBV: Tensor, target_KBV: Tensor) -> Tensor:
        """Return what each sample's prototype loss is, given the prototype of its class."""
        return self.distance(p_KBV - target_KBV)

    def distance(self, difference_KBV: Tensor) -> Tensor:
        """Return each sample's distance from its target prototype: the mean squared error."""
        return difference_KBV.square().mean(-1)

    def reduce(self, batch: Batch, distance_KB: Tensor) -> Tensor:
        """Return each client's prototype loss, from the distances of its samples."""
        return batch.mean(distance_KB)
