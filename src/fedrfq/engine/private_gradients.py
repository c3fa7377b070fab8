"""Gradients of DP-SGD: each sample's is clipped, and their sum gets noise.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016. A sample's own gradient comes of
the engine as it is: every sample is given a client of its own, with a batch of one.

Each gradient is clipped and cut to whole numbers on a grid, toward 0, which makes nothing longer.
So a sample that comes or goes changes the sum by at most `LENGTH`, exactly, and rounded Gaussian
noise of the operating system is added to whole numbers. What is made of the noisy sum tells nothing
more. It is divided by `train.batch_size`: the number of samples that were really there is a secret.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.engine.schedule import ScheduledStep
from fedrfq.methods.method import Guide
from fedrfq.models.stacked import Params, TrainingStep, trained
from fedrfq.privacy.rounded_gaussian import rounded_gaussian

# The norm of a clipped gradient on the grid.
LENGTH = 1 << 20
# What float64 may be wrong by when it computes a norm.
_MARGIN = 1 - 1e-9
# Values of the gradients that are computed at once: it bounds the memory.
_VALUES = 1 << 24


def private_gradients(
    program: Program, params: Params, x: Tensor, y_KB: Tensor, step: ScheduledStep, guide: Guide
) -> tuple[list[Tensor], Tensor]:
    """Return each client's noisy gradients, and the sums of its samples' losses."""
    own = {name: p.detach() for name, p in params.items()}
    size = sum(p[0].numel() for p in own.values())
    many = max(1, _VALUES // (size * len(y_KB)))
    sums = [torch.zeros_like(p, dtype=torch.float64) for n, p in own.items() if trained(n)]
    losses_K3 = torch.zeros(len(y_KB), 3, device=x.device)
    for first in range(0, y_KB.shape[1], many):
        some = slice(first, first + many)
        grads, losses_KB3 = _of_samples(program, own, x[:, some], y_KB[:, some], step, some, guide)
        weight_KB = step.weight_KB[:, some]
        for total, part in zip(sums, clipped_sums(grads, weight_KB, program.train), strict=True):
            total += part
        real_KB1 = weight_KB[..., None] > 0
        losses_K3 += losses_KB3.where(real_KB1, 0).sum(1)
    return [_noisy(total, program.train).to(x.dtype) for total in sums], losses_K3


def _of_samples(
    program: Program,
    own: Params,
    x: Tensor,
    y_KB: Tensor,
    step: ScheduledStep,
    some: slice,
    guide: Guide,
) -> tuple[list[Tensor], Tensor]:
    """Return the gradients and losses of some samples of each client."""
    samples = y_KB.shape[1]
    copies = {name: _each(p, samples).requires_grad_(trained(name)) for name, p in own.items()}
    leaves = [p for name, p in copies.items() if trained(name)]
    keep = None
    if step.keep_KBU is not None:
        keep = step.keep_KBU[:, some].flatten(0, 1)[:, None]
    # Padding is left out afterwards; here every batch has its one sample.
    ones = torch.ones(y_KB.numel(), 1, device=x.device)
    alone = TrainingStep(ones, keep)
    batch = program.batch(copies, x.flatten(0, 1)[:, None], y_KB.reshape(-1, 1), alone)
    losses = program.method.losses(batch, {name: _each(g, samples) for name, g in guide.items()})
    grads = torch.autograd.grad(losses[0].sum(), leaves)
    return list(grads), torch.stack(losses, 1).detach().view(*y_KB.shape, 3)


def _each(rows: Tensor, samples: int) -> Tensor:
    """Return a copy of each client's row for each of its samples."""
    return rows.repeat_interleave(samples, 0)


def clipped_sums(
    grads: Sequence[Tensor], weight_KB: Tensor, train: TrainingOptions
) -> list[Tensor]:
    """Return for each client the sums of its samples' clipped gradients, in whole numbers."""
    scaled = [grad.double() * (LENGTH / train.dp_clip) for grad in grads]
    square_R = torch.stack([part.flatten(1).square().sum(1) for part in scaled]).sum(0)
    norm_R = square_R.sqrt()
    factor_R = (LENGTH * _MARGIN / norm_R.clamp_min(1)).clamp_max(1)
    # A gradient that is no number says so by its absence.
    counts_R = torch.isfinite(norm_R) & (weight_KB.flatten() > 0)
    sums = []
    for part in scaled:
        column = (-1, *[1] * (part.dim() - 1))
        whole = (part * factor_R.view(column)).trunc().where(counts_R.view(column), 0)
        sums.append(whole.view(*weight_KB.shape, *part.shape[1:]).sum(1))
    return sums


def _noisy(total: Tensor, train: TrainingOptions) -> Tensor:
    """Return the sum of a layer's clipped gradients with noise, divided by the batch size."""
    drawn = torch.from_numpy(rounded_gaussian(train.dp_noise * LENGTH, total.numel()))
    noise = drawn.view_as(total).to(total.device)
    return (total + noise) * (train.dp_clip / LENGTH / train.batch_size)
