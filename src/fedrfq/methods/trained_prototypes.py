"""What FedTGP and FedORGP share: a server that trains the global prototypes on single uploads.

The server holds an embedding e of every class and a small network, and a global prototype is
P̂ = W₂ · ReLU(W₁ e + b₁) + b₂. Each round it trains all of these by SGD on the clients' uploaded
prototypes, one by one, and clients get the new P̂.

Such training is in floating point and sees single uploads, so servers could not agree on its result
to the bit: it takes one server that everybody trusts. It runs on the CPU in float64, in an order
that follows from the seed. Classes that nobody has uploaded yet are not sent back.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.method import MAX_WEIGHT
from fedrfq.methods.prototype_loss import PrototypeLoss
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Uploads, fixed


@dataclass(frozen=True)
class TrainedPrototypes(PrototypeLoss):
    """A prototype loss whose targets one trusted server trains."""

    server_epochs: int = option(
        100, "Passes of the server over a round's uploaded prototypes", "1 or more"
    )
    server_batch: int = option(10, "Uploaded prototypes in a step of the server", "1 or more")
    server_lr: float = option(
        0.01, "Learning rate of the server's SGD", f"above 0, at most {MAX_WEIGHT:g}"
    )

    exchanges: ClassVar[bool] = True
    predicts: ClassVar[bool] = True
    trains_server: ClassVar[bool] = True
    carried: ClassVar[tuple[str, ...]] = (
        *PrototypeLoss.carried,
        "server_epochs",
        "server_batch",
        "server_lr",
    )

    def server_start(self, classes: int, values: int, rng: Generator) -> Params:
        # As PyTorch starts embeddings and linear layers.
        bound = values**-0.5
        arrays = {
            "embedding": rng.standard_normal((classes, values)),
            "hidden.weight": rng.uniform(-bound, bound, (values, values)),
            "hidden.bias": rng.uniform(-bound, bound, values),
            "out.weight": rng.uniform(-bound, bound, (values, values)),
            "out.bias": rng.uniform(-bound, bound, values),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def server_step(
        self, server: Params, uploads: Uploads, globals_: Globals, rng: Generator
    ) -> tuple[Params, Globals]:
        row_N, class_N = np.nonzero(uploads.counts_KJ)
        if not len(row_N):
            return server, globals_
        p_NV = torch.from_numpy(uploads.values_KJV[row_N, class_N] / 2.0**FRACTION_BITS)
        y_N = torch.from_numpy(class_N)
        trained = self.trained(server, p_NV, y_N, rng)
        values_JV = np.where(
            globals_.present_J[:, None], fixed(self.outgoing(generated(trained)).numpy()), 0
        )
        return trained, Globals(globals_.present_J, values_JV)

    def trained(self, server: Params, p_NV: Tensor, y_N: Tensor, rng: Generator) -> Params:
        """Return the server's parameters after its passes over the uploaded prototypes."""
        margin = self.margin(p_NV, y_N)
        params = {name: p.clone().requires_grad_() for name, p in server.items()}
        leaves = list(params.values())
        for _ in range(self.server_epochs):
            order = torch.from_numpy(rng.permutation(len(y_N)))
            for rows in torch.split(order, self.server_batch):
                loss = self.server_loss(p_NV[rows], y_N[rows], generated(params), margin)
                grads = torch.autograd.grad(loss, leaves)
                with torch.no_grad():
                    torch._foreach_add_(leaves, grads, alpha=-self.server_lr)
        return {name: p.detach() for name, p in params.items()}

    def margin(self, p_NV: Tensor, y_N: Tensor) -> float:
        """Return the margin of a round's training, from all its uploads."""
        return 0.0

    @abstractmethod
    def server_loss(self, p_NV: Tensor, y_N: Tensor, g_JV: Tensor, margin: float) -> Tensor:
        """Return the loss of some uploaded prototypes and their classes, given all P̂."""

    def outgoing(self, g_JV: Tensor) -> Tensor:
        """Return the prototypes that clients get, from all P̂."""
        return g_JV


def generated(server: Params) -> Tensor:
    """Return P̂ of every class."""
    hidden_JV = F.linear(server["embedding"], server["hidden.weight"], server["hidden.bias"])
    return F.linear(hidden_JV.relu(), server["out.weight"], server["out.bias"])


def largest_gap(points_JV: Tensor) -> Tensor:
    """Return the largest, over the points, of the distance to the nearest other; 0 for one."""
    if len(points_JV) < 2:
        return points_JV.new_zeros(())
    distance_JJ = torch.linalg.vector_norm(points_JV[:, None] - points_JV, dim=-1)
    gap: Tensor = distance_JJ.fill_diagonal_(torch.inf).amin(1).amax()
    return gap
