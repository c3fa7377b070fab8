"""FeSEM holds several global models and groups the clients around them.

Long et al., "Multi-Center Federated Learning: Clients Clustering for Better Personalization",
World Wide Web, 2023.

The server holds several global models, the centres. After a round each client is assigned to the
centre nearest to its parameters (squared L2 distance). Every centre becomes the average of its
clients, weighted by their numbers of samples, and a client goes on from its centre. A centre that
no client is nearest to stays as it is. With one centre it is FedAvg.

Departures: BatchNorm's moments count in the distance like parameters. All clients start from one
model, and the first centres are clients' models of the first round, each the farthest from those
chosen before it. The paper clusters, or starts from several random models; with these, clients keep
the model they were given, because random starts lie farther apart than training moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.fedavg import FedAvg
from fedrfq.models.stacked import Params


@dataclass(frozen=True)
class FeSEM(FedAvg):
    """FedAvg with several global models, each averaged over the clients nearest to it."""

    clusters: int = option(
        3, "Number of global models, each shared by a group of clients", "1 to clients"
    )

    @property
    def centres(self) -> int:  # type: ignore[override]
        return self.clusters

    def assign(self, centres: Params, sent: Params, weight_RK: Tensor, first: bool) -> Tensor:
        clients_RKP = _flat(sent)
        centres_RMP = _flat(centres)
        if first:
            centres_RMP = farthest(clients_RKP, weight_RK > 0, self.clusters)
        # Models are near each other and far from 0: the faster mode, by products, would cancel.
        return torch.cdist(
            clients_RKP, centres_RMP, compute_mode="donot_use_mm_for_euclid_dist"
        ).argmin(-1)


def farthest(clients_RKP: Tensor, present_RK: Tensor, centres: int) -> Tensor:
    """Choose centres among each run's present clients: the first client, then always the one
    farthest from all chosen before it."""
    runs = torch.arange(len(clients_RKP), device=clients_RKP.device)
    chosen_R = present_RK.to(torch.uint8).argmax(1)
    nearest_RK = torch.full_like(present_RK, torch.inf, dtype=clients_RKP.dtype)
    chosen = []
    for _ in range(centres):
        centre_RP = clients_RKP[runs, chosen_R]
        chosen.append(centre_RP)
        nearest_RK = torch.minimum(nearest_RK, (clients_RKP - centre_RP[:, None]).square().sum(-1))
        chosen_R = nearest_RK.masked_fill(~present_RK, -1).argmax(1)
    return torch.stack(chosen, 1)


def _flat(params: Params) -> Tensor:
    """Return all parameters of each model as one vector, in float64."""
    return torch.cat([p.flatten(2) for p in params.values()], -1).double()
