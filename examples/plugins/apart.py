"""Apart: a trusted server that trains global prototypes away from each other, as FedTGP does.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024.

The server keeps a prototype of every class from round to round. Each round it takes gradient steps
on the clients' single uploads: every upload is to be nearer to its own class's prototype than to
any other, by a margin. Departures: the prototypes are trained themselves, without a network in
front of them, and the margin is an option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

import fedrfq
from fedrfq.files.options import option
from fedrfq.methods.prototype_loss import PrototypeLoss
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Uploads, fixed

Server = dict[str, Tensor]


@fedrfq.register("method", "apart")
@dataclass(frozen=True)
class Apart(PrototypeLoss):
    """FedProto whose one trusted server trains the prototypes."""

    steps: int = option(50, "Gradient steps of the server in a round", "1 or more")
    step_size: float = option(0.1, "Learning rate of the server", "above 0")
    margin: float = option(1.0, "How much nearer the own class must be", "0 or more")

    exchanges: ClassVar[bool] = True
    predicts: ClassVar[bool] = True
    trains_server: ClassVar[bool] = True  # floats, on single uploads: never a committee

    def server_start(self, classes: int, values: int, rng: Generator) -> Server:
        return {"prototypes": torch.from_numpy(rng.standard_normal((classes, values)))}

    def server_step(
        self, server: Server, uploads: Uploads, globals_: Globals, rng: Generator
    ) -> tuple[Server, Globals]:
        row_N, class_N = np.nonzero(uploads.counts_KJ)
        if not len(row_N):
            return server, globals_
        p_NV = torch.from_numpy(uploads.values_KJV[row_N, class_N] / 2.0**FRACTION_BITS)
        trained_JV = self._trained(server["prototypes"], p_NV, torch.from_numpy(class_N))
        values_JV = np.where(globals_.present_J[:, None], fixed(trained_JV.numpy()), 0)
        return {"prototypes": trained_JV}, replace(globals_, values_JV=values_JV)

    def _trained(self, start_JV: Tensor, p_NV: Tensor, y_N: Tensor) -> Tensor:
        """Return the prototypes after the steps; those from the last round are left as they are."""
        g_JV = start_JV.clone().requires_grad_()
        own_NJ = F.one_hot(y_N, len(g_JV))
        for _ in range(self.steps):
            distance_NJ = torch.linalg.vector_norm(p_NV[:, None] - g_JV, dim=-1)
            loss = F.cross_entropy(-(distance_NJ + self.margin * own_NJ), y_N)
            (gradient_JV,) = torch.autograd.grad(loss, g_JV)
            g_JV = (g_JV - self.step_size * gradient_JV).detach().requires_grad_()
        return g_JV.detach()
