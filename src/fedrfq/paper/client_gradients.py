"""A client's loss over all its samples at given weights, and its gradients' spread, in float64.

Models, pooling and losses are those that the program trains with.
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
_NUDGE = 1e-4  # length of the step, in weights, of the finite differences of gradients
_DRAWS = 16  # minibatches over which the expected norm of a step's gradient is estimated


@dataclass(frozen=True)
class Point:
    """Weights, and what was measured there."""

    w: Tensor
    loss: float
    gradient: Tensor  # of the loss over all samples
    drawn: Tensor  # the gradient of one minibatch
    variance: float  # of a minibatch's gradient
    norm: float  # the expected norm of a minibatch's gradient
    c_ND: Tensor  # the samples' features


@dataclass(frozen=True)
class ClientLoss:
    """A client's loss as a function of a vector of weights, given its samples."""

    program: Program
    like: Params  # gives the weights their names and shapes
    x: Tensor
    y: Tensor

    def guide(self, globals_: Globals) -> Guide:
        """Return what the client is given to train with from round 2 on."""
        # FedRFQ's guide depends on the globals alone: of the weights it needs no more than a count.
        return self.program.method.guide(2, globals_, {"": torch.zeros(1, 1)})

    def point(self, w: Tensor, guide: Guide, rng: Generator) -> Point:
        """Measure the loss and its gradients at some weights."""
        losses_N, gradients_NP, c_ND = self.samples(w, guide)
        batch = self.program.train.batch_size
        gradient = gradients_NP.mean(0)
        drawn_SP = minibatches(gradients_NP, batch, _DRAWS, rng)
        return Point(
            w=w,
            loss=losses_N.mean().item(),
            gradient=gradient,
            drawn=drawn_SP[0],
            variance=variance(gradients_NP, batch),
            norm=torch.linalg.vector_norm(drawn_SP, dim=1).mean().item(),
            c_ND=c_ND,
        )

    def samples(self, w: Tensor, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """Return each sample's loss, gradient and features.

        There are as many copies of the model as samples, and each copy is given one of them: the
        gradient of a copy's weights is then that sample's.
        """
        copies = w.expand(len(self.y), -1).clone().requires_grad_()
        batch = self._batch(copies, self.x[:, None], self.y[:, None])
        # Every copy is told the same.
        rows = {name: g.expand(len(self.y), *g.shape[1:]) for name, g in guide.items()}
        losses_N = self.program.method.losses(batch, rows)[0]
        (gradients_NP,) = torch.autograd.grad(losses_N.sum(), copies)
        return losses_N.detach(), gradients_NP, batch.c_KBD.detach()[:, 0]

    def whole(self, w: Tensor, guide: Guide) -> tuple[float, Tensor]:
        """Return the loss over all samples at once, and its gradient."""
        at = w[None].clone().requires_grad_()
        batch = self._batch(at, self.x[None], self.y[None])
        loss = self.program.method.losses(batch, guide)[0].sum()
        (gradient_1P,) = torch.autograd.grad(loss, at)
        return loss.item(), gradient_1P[0]

    def representation(self) -> Tensor:
        """Return a mask of the weights below the decision layer."""
        is_head = self.program.model.head
        masks = [torch.full((p.numel(),), not is_head(name)) for name, p in self.like.items()]
        return torch.cat(masks)

    def _batch(self, w_KP: Tensor, x: Tensor, y_KB: Tensor) -> Batch:
        pieces = torch.split(w_KP, [p.numel() for p in self.like.values()], 1)
        params = {
            name: piece.view(-1, *p.shape)
            for (name, p), piece in zip(self.like.items(), pieces, strict=True)
        }
        # Every sample counts, and there is no dropout: the loss is a function of the weights alone.
        weight = torch.ones(y_KB.shape, dtype=w_KP.dtype)
        c, logits = self.program.model.forward(_LAYOUT, params, x, TrainingStep(weight, None))
        return Batch(logits, c, self.program.pool(c), y_KB, weight, params)


def minibatches(gradients_NP: Tensor, batch: int, draws: int, rng: Generator) -> Tensor:
    """Return the mean gradients of `draws` minibatches of `batch` samples each.

    Samples are drawn with replacement, so the expectation is the gradient over all samples.
    """
    chosen_SB = torch.from_numpy(rng.integers(len(gradients_NP), size=(draws, batch)))
    return torch.stack([gradients_NP[chosen_B].mean(0) for chosen_B in chosen_SB])


def variance(gradients_NP: Tensor, batch: int) -> float:
    """Return E‖g − ∇ℓ‖² of the gradient g of a minibatch drawn with replacement."""
    of_one_sample = (gradients_NP - gradients_NP.mean(0)).square().sum(1).mean().item()
    # The draws are independent: the variance of their mean is exactly a `batch`-th of one's.
    return of_one_sample / batch


def curvature(
    gradient: Callable[[Tensor], Tensor], w: Tensor, powers: int, rng: Generator
) -> float:
    """Return the Hessian's largest absolute eigenvalue at w, by power iteration.

    Products with the Hessian are central differences of gradients.
    """
    direction = torch.from_numpy(rng.standard_normal(len(w)))
    eigenvalue = 0.0
    for _ in range(powers):
        step = _NUDGE * direction / direction.norm()
        direction = (gradient(w + step) - gradient(w - step)) / (2 * _NUDGE)
        eigenvalue = direction.norm().item()
        # A zero Hessian leaves no direction to go on with.
        if not eigenvalue:
            break
    return eigenvalue
