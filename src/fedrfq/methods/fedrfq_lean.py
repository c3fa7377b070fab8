"""fedrfq-lean is FedRFQ with a sixth of the bits, and prototypes that are kept apart. Ours.

Pooling windows do not overlap (stride 2: 12 values instead of 24) and are averaged, and values are
exchanged on a grid of `bits` bits. To FedRFQ's loss it adds a separation term: `separation` times
the cross-entropy over the negative distances from P to *all* global prototypes, divided by
`temperature`. P is then not only near the prototype of its class but nearer to it than to the
others. The distance may be squared (`power = 2`, mean squared error as in FedProto). λ and the
separation grow linearly over the first `warmup` rounds.

Found by search on samples held back from training, never on test samples
(`bench/lean_search.py`). The search showed that the separation term matters, above all in the
first rounds; that 8 bits do as well as 16, 12 values as well as 24, and average pooling as well as
SoftPool; and that warm-up does not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.method import MAX_WEIGHT, Batch, Guide
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import MAX_BITS, MIN_BITS, Globals, Precision

# The logit of a class without a global prototype: its probability underflows to 0, and unlike −∞ it
# gives no NaN where no class has one.
_ABSENT = -1e9


@dataclass(frozen=True)
class FedRFQLean(FedRFQ):
    """FedRFQ with shorter messages and a separation term in the loss."""

    power: int = option(
        1,
        "Distance in the prototype loss: 1 is the L2 norm, 2 the mean squared error",
        "1 to 2",
    )
    separation: float = option(
        0.3,
        "Weight of the term that keeps the classes' prototypes apart",
        f"0 to {MAX_WEIGHT:g}",
    )
    temperature: float = option(
        0.2,
        "Temperature of the separation term: distances are divided by it",
        f"{1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
    )
    warmup: int = option(
        0, "Rounds over which lam and separation grow from 0 to their values", "0 or more"
    )
    bits: int = option(8, "Bits of each prototype value in an upload", f"{MIN_BITS} to {MAX_BITS}")

    pool: ClassVar[Mapping[str, Any]] = {"name": "avg", "stride": 2}
    carried: ClassVar[tuple[str, ...]] = (
        *FedRFQ.carried,
        "separation",
        "temperature",
        "warmup",
    )

    def guide(self, number: int, targets: Globals, own: Params) -> Guide:
        guide = super().guide(number, targets, own)
        share = 1.0
        if self.warmup:
            share = min(1.0, (number - 1) / self.warmup)
        one_K = torch.ones_like(guide["lam_K"])
        return {
            **guide,
            "lam_K": guide["lam_K"] * share,
            "separation_K": one_K * self.separation * share,
            "temperature_K": one_K * self.temperature,
        }

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        total, classification, prototype = super().losses(batch, guide)
        separation = guide["separation_K"] * batch.mean(self.separations(batch, guide))
        return total + separation, classification, prototype + separation

    def separations(self, batch: Batch, guide: Guide) -> Tensor:
        """Return each sample's cross-entropy of being nearest to the prototype of its class.

        It is 0 for samples of classes without a global prototype.
        """
        difference_KBJV = batch.p_KBV[:, :, None] - guide["values_KJV"][:, None]
        nearness_KBJ = -self.distance(difference_KBJV) / guide["temperature_K"][:, None, None]
        absent_KBJ = (guide["present_KJ"] == 0)[:, None].expand_as(nearness_KBJ)
        chance_KBJ = nearness_KBJ.masked_fill(absent_KBJ, _ABSENT).log_softmax(-1)
        own_KB = chance_KBJ.gather(2, batch.y_KB[..., None])[..., 0]
        return -own_KB * guide["present_KJ"].gather(1, batch.y_KB)

    def distance(self, difference: Tensor) -> Tensor:
        if self.power == 2:
            return difference.square().mean(-1)
        return super().distance(difference)

    def precision(self) -> Precision:
        return Precision(self.bits)
