"""FedProto exchanges class prototypes instead of models.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

A client's loss is cross-entropy plus λ times the mean squared error between a sample's feature
vector and the global prototype of its class. Samples of classes without a global prototype (all of
them in round 1) have no second term. Clients upload the mean feature vector of each class, and the
server averages these, every client counting alike (`aggregate = "mean"`).

Departures: a client averages its features over all its data with the trained model, which is the
paper's rule. The reference code averages the features seen in the steps of the last epoch, with
dropout on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files.options import one_of, option
from fedrfq.methods.method import MAX_WEIGHT, Batch, Guide, Method, cross_entropy
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.centres import RULES


@dataclass(frozen=True)
class FedProto(Method):
    """Cross-entropy plus λ times the distance to the global prototype of the sample's class."""

    lam: float = option(1.0, "Weight of the prototype loss (λ)", f"0 to {MAX_WEIGHT:g}")
    aggregate: str = option(
        "mean", "Rule by which uploaded prototypes become the global one", one_of(RULES)
    )

    exchanges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.aggregate not in RULES:
            raise UserError(
                f"method.aggregate must be one of {', '.join(RULES)}, not '{self.aggregate}'"
            )
        if not 0 <= self.lam <= MAX_WEIGHT:
            raise UserError(f"method.lam must be a number from 0 to {MAX_WEIGHT:g}, not {self.lam}")

    def guide(self, number: int, globals_: Globals, own: Params) -> Guide:
        clients = len(next(iter(own.values())))
        values = torch.from_numpy(globals_.floats())
        present = torch.from_numpy(globals_.present_J).float()
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
        prototype = self.reduce(batch, self.distance(batch.p_KBV - target_KBV) * known_KB)
        return classification + guide["lam_K"] * prototype, classification, prototype

    def distance(self, difference_KBV: Tensor) -> Tensor:
        """Return each sample's distance from its target prototype: the mean squared error."""
        return difference_KBV.square().mean(-1)

    def reduce(self, batch: Batch, distance_KB: Tensor) -> Tensor:
        """Return each client's prototype loss, from the distances of its samples."""
        return batch.mean(distance_KB)

    def rule(self) -> str:
        return self.aggregate

    def program(self) -> Hashable:
        # λ is in the guide, and the server aggregates: neither is part of the training program.
        return replace(self, lam=0.0, aggregate="mean")
