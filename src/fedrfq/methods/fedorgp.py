"""FedORGP trains global prototypes on the server to be orthogonal to one another.

Guo et al., "FedORGP: Guiding Heterogeneous Federated Learning with Orthogonality Regularization on
Global Prototypes", 2025 (arXiv 2502.16119).

Only directions count. A client minimises cross-entropy plus λ times the mean of 1 − cos(C, P̂_y)
over its samples. The server trains its P̂ (`trained_prototypes.py`) on the uploaded prototypes P of
class c: the mean of 1 − cos(P, P̂_c), plus `gamma` times the mean over the other classes of
|cos(P, P̂_k)|.

Departures: P̂ goes back with norm 1. Directions are all that the losses see, and among prototypes of
one length the nearest is the one at the smallest angle, by which the paper predicts. The paper's
weight of the server's first term is 1 and stays so, since `server_lr` scales both. Its λ is 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.method import MAX_WEIGHT
from fedrfq.methods.trained_prototypes import TrainedPrototypes

# Below this length a feature vector has no direction, and its gradient stays bounded.
_SHORTEST = 1e-4


@dataclass(frozen=True)
class FedORGP(TrainedPrototypes):
    """Features and prototypes of a class in one direction, those of others at right angles."""

    lam: float = option(10.0, "Weight of the prototype loss (λ)", f"0 to {MAX_WEIGHT:g}")
    server_epochs: int = option(
        1, "Passes of the server over a round's uploaded prototypes", "1 or more"
    )
    gamma: float = option(
        10.0, "Weight of the orthogonality of other classes' prototypes (γ)", f"0 to {MAX_WEIGHT:g}"
    )

    carried: ClassVar[tuple[str, ...]] = (*TrainedPrototypes.carried, "gamma")

    def pull(self, p_KBV: Tensor, target_KBV: Tensor) -> Tensor:
        return 1 - F.cosine_similarity(p_KBV, target_KBV, dim=-1, eps=_SHORTEST)

    def server_loss(self, p_NV: Tensor, y_N: Tensor, g_JV: Tensor, margin: float) -> Tensor:
        cos_NJ = F.cosine_similarity(p_NV[:, None], g_JV, dim=-1)
        own_NJ = F.one_hot(y_N, len(g_JV))
        own = (cos_NJ * own_NJ).sum() / len(y_N)
        others = (cos_NJ.abs() * (1 - own_NJ)).sum() / (1 - own_NJ).sum().clamp_min(1)
        return 1 - own + self.gamma * others

    def outgoing(self, g_JV: Tensor) -> Tensor:
        return F.normalize(g_JV, dim=-1)
