"""FedProx keeps clients near the global model while they train.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

FedAvg in which a client's loss has a proximal term: μ/2 times the squared distance between its
parameters and those it started the round from, so that clients with different data do not drift
apart. With μ = 0 it is FedAvg.

Departures: every client does its full epochs (the paper also lets slow clients do fewer), and μ is
one number for all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.fedavg import FedAvg
from fedrfq.methods.method import MAX_WEIGHT, Batch, Guide, cross_entropy
from fedrfq.models.stacked import Params, trained
from fedrfq.prototypes.fixed_point import Globals


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term in the clients' loss."""

    mu: float = option(0.01, "Weight of the proximal term (μ)", f"0 to {MAX_WEIGHT:g}")

    carried: ClassVar[tuple[str, ...]] = ("mu",)

    def guide(self, number: int, targets: Globals, own: Params) -> Guide:
        """Return μ and the parameters at the start of the round, which the loss compares with."""
        clients = len(next(iter(own.values())))
        return {
            "mu_K": torch.full((clients,), self.mu),
            **{name: p for name, p in own.items() if trained(name)},
        }

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        classification = batch.mean(cross_entropy(batch))
        squares = [
            (batch.params[name] - start).square().flatten(1).sum(1)
            for name, start in guide.items()
            if name != "mu_K"
        ]
        proximal = torch.stack(squares).sum(0) / 2
        return classification + guide["mu_K"] * proximal, classification, proximal
