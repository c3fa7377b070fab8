"""A client's loss over all its samples as it looks from some weights: its gradient and its gradients' spread, in float64.

Models, pooling and losses are the program's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from numpy.random import Generator
from torch import Tensor

from fedrfq.engine.engine import Program
from fedrfq.methods.method import Batch, Guide
from fedrfq.models.stacked import Batched, Params, TrainingStep
from fedrfq.prototypes.fixed_point import Globals

_LAYOUT = Batched()  # fast in float64 on a CPU, where grouped convolutions are not
_NUDGE = 1e-4  # of the finite differences of gradients, in the weights' own length
_DRAWS = 16  # minibatches from which the expected norm of a step's gradient is taken


@dataclass(frozen=True)
class Point:
    """Weights; there the loss, its gradient, a minibatch's gradient, its variance and its expected norm, and the features."""

    w: Tensor
    loss: float
    gradient: Tensor
    drawn: Tensor
    variance: float
    norm: float
    c_ND: Tensor


@dataclass(frozen=True)
class ClientLoss:
    """Samples, and a program over a vector of weights."""

    program: Program
    like: Params  # names and shapes of the weights
    x: Tensor
    y: Tensor

    def guide(self, globals_: Globals) -> Guide:
        """What it is told."""
        return self.program.method.guide(2, globals_, {"": torch.zeros(1, 1)})

    def point(self, w: Tensor, guide: Guide, rng: Generator) -> Point:
        losses_N, gradients_NP, c_ND = self.samples(w, guide)
        batch = self.program.train.batch_size
        gradient = gradients_NP.mean(0)
        drawn_SP = minibatches(gradients_NP, batch, _DRAWS, rng)
        norm = torch.linalg.vector_norm(drawn_SP, dim=1).mean().item()
        return Point(
            w,
            losses_N.mean().item(),
            gradient,
            drawn_SP[0],
            variance(gradients_NP, batch),
            norm,
            c_ND,
        )

    def samples(self, w: Tensor, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """Each sample's loss, gradient and features: as many copies of the model as there are samples, each with one."""
        copies = w.expand(len(self.y), -1).clone().requires_grad_()
        batch = self._batch(copies, self.x[:, None], self.y[:, None])
        rows = {name: g.expand(len(self.y), *g.shape[1:]) for name, g in guide.items()}
        losses_N = self.program.method.losses(batch, rows)[0]
        return (
            losses_N.detach(),
            torch.autograd.grad(losses_N.sum(), copies)[0],
            batch.c_KBD.detach()[:, 0],
        )

    def whole(self, w: Tensor, guide: Guide) -> tuple[float, Tensor]:
        """The loss over all samples at once, and its gradient."""
        at = w[None].clone().requires_grad_()
        loss = self.program.method.losses(self._batch(at, self.x[None], self.y[None]), guide)[
            0
        ].sum()
        return loss.item(), torch.autograd.grad(loss, at)[0][0]

    def representation(self) -> Tensor:
        """Which weights lie below the decision layer."""
        head = self.program.model.head
        return torch.cat(
            [torch.full((p.numel(),), not head(name)) for name, p in self.like.items()]
        )

    def _batch(self, w_KP: Tensor, x: Tensor, y_KB: Tensor) -> Batch:
        pieces = torch.split(w_KP, [p.numel() for p in self.like.values()], 1)
        params = {
            name: piece.view(-1, *p.shape)
            for (name, p), piece in zip(self.like.items(), pieces, strict=True)
        }
        weight = torch.ones(y_KB.shape, dtype=w_KP.dtype)
        c, logits = self.program.model.forward(_LAYOUT, params, x, TrainingStep(weight, None))
        return Batch(logits, c, self.program.pool(c), y_KB, weight, params)


def minibatches(gradients_NP: Tensor, batch: int, draws: int, rng: Generator) -> Tensor:
    """Mean gradients of so many samples each, drawn with replacement: then their expectation is that of all samples."""
    chosen_SB = torch.from_numpy(rng.integers(len(gradients_NP), size=(draws, batch)))
    return torch.stack([gradients_NP[chosen_B].mean(0) for chosen_B in chosen_SB])


def variance(gradients_NP: Tensor, batch: int) -> float:
    """E‖g − ∇ℓ‖² of so many samples drawn with replacement: exactly a `batch`-th of one sample's."""
    return (gradients_NP - gradients_NP.mean(0)).square().sum(1).mean().item() / batch


def curvature(
    gradient: Callable[[Tensor], Tensor], w: Tensor, powers: int, rng: Generator
) -> float:
    """The Hessian's largest absolute eigenvalue, by power iteration over differences of gradients."""
    direction = torch.from_numpy(rng.standard_normal(len(w)))
    found = 0.0
    for _ in range(powers):
        step = _NUDGE * direction / direction.norm()
        direction = (gradient(w + step) - gradient(w - step)) / (2 * _NUDGE)
        found = direction.norm().item()
        if not found:
            break
    return found
