"""FedTGP trains global prototypes on the server, with a margin that follows the clients'.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024.

Clients minimise FedProto's loss, toward the server's P̂ of the class. The server trains its P̂
(`trained_prototypes.py`) so that every uploaded prototype P of class c is nearer to P̂_c than to
all others, by a margin: cross-entropy over −(‖P − P̂_k‖ + δ · 1[k = c]). δ is the largest, over the
classes, of the distance between the class's mean upload and the nearest other class's, at most
`tau`.

Departures: the uploads are the means over a client's whole data in fixed point, as all our methods
have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.method import MAX_WEIGHT
from fedrfq.methods.trained_prototypes import TrainedPrototypes, largest_gap


@dataclass(frozen=True)
class FedTGP(TrainedPrototypes):
    """FedProto whose trusted server trains the prototypes apart."""

    tau: float = option(
        100.0, "The largest margin between prototypes on the server (τ)", f"0 to {MAX_WEIGHT:g}"
    )

    carried: ClassVar[tuple[str, ...]] = (*TrainedPrototypes.carried, "tau")

    def margin(self, p_NV: Tensor, y_N: Tensor) -> float:
        means_JV = torch.stack([p_NV[y_N == j].mean(0) for j in sorted(set(y_N.tolist()))])
        return min(float(largest_gap(means_JV)), self.tau)

    def server_loss(self, p_NV: Tensor, y_N: Tensor, g_JV: Tensor, margin: float) -> Tensor:
        distance_NJ = torch.linalg.vector_norm(p_NV[:, None] - g_JV, dim=-1)
        own_NJ = F.one_hot(y_N, len(g_JV))
        return F.cross_entropy(-(distance_NJ + margin * own_NJ), y_N)
