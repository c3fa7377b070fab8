"""Estimate SoftPool's Lipschitz constants: the supremum of its Jacobian's operator norm.

A window of values c gives p = Σ w c with w their softmax, so ∂p/∂c_j = w_j (1 + c_j − p). From the
max norm of a window to that of its one value, the operator norm is Σ |∂p/∂c_j|; from the L2 norm it
is the gradient's L2 norm; for a whole map, whose windows may overlap, it is the Jacobian's largest
singular value. Each is maximised from many random starts, in float64. The value found is attained,
so no constant can be smaller; the many starts, and pairs of random inputs, are there to check that
none is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.engine.threads import one_thread
from fedrfq.prototypes.pooling import Pool

# Of random inputs: with small ones a window's values mix well, with large ones a single one leads.
_SCALES = (0.5, 1.0, 2.0, 4.0)
# Adam's settings for the ascent.
_STEPS = 300
_RATE = 0.1
_BETA_MEAN = 0.9
_BETA_SQUARE = 0.999
_EPSILON = 1e-8
# Distances between the inputs of a pair, as powers of ten.
_SHORTEST = -4.0
_LONGEST = 1.0

Objective = Callable[[Tensor], Tensor]  # from maps S × D to a value for each, S


@dataclass(frozen=True)
class Steepest:
    """The largest value found, and the map or window at which it was found."""

    value: float
    c: Tensor


def window(kernel: int) -> Pool:
    """Return SoftPool for a single window: a map of k̂² values has no room for a second one."""
    return Pool("softpool", kernel, kernel)


def jacobian(pool: Pool, c: Tensor) -> Tensor:
    """Return ∂P/∂C, S × V × D, for maps S × D."""
    # A value outside of a window has no influence on it: its derivative stays 0.
    places = _places(pool, c.shape[1]).expand(len(c), -1, -1)
    zeros = torch.zeros(*places.shape[:2], c.shape[1], dtype=c.dtype)
    return zeros.scatter(2, places, _gradients(c[:, places[0]]))


def steepest_max(pool: Pool, values: int, starts: int, rng: Generator) -> Steepest:
    """Maximise the operator norm for the max norm: the largest sum of a row's absolute values."""
    return _maximise(lambda c: jacobian(pool, c).abs().sum(-1).amax(-1), values, starts, rng)


def steepest_l2(pool: Pool, values: int, starts: int, rng: Generator) -> Steepest:
    """Maximise the operator norm for L2: the largest singular value."""
    return _maximise(lambda c: torch.linalg.matrix_norm(jacobian(pool, c), 2), values, starts, rng)


def pair_ratios(
    pool: Pool, steepest: Steepest, order: float, pairs: int, rng: Generator
) -> NDArray[np.float64]:
    """Return the ratio of the distance of outputs to that of inputs, for random pairs of inputs.

    `order` is that of the norm. Half of the pairs are anywhere, the other half begin where the
    constant was found. The outputs are those of the pooling that the program trains with.
    """
    a, b = random_pairs(len(steepest.c), pairs, rng)
    half = pairs // 2
    # Moves the first half to where the constant was found; b keeps its distance from a.
    b[:half] += steepest.c - a[:half]
    a[:half] = steepest.c
    inputs_apart = torch.linalg.vector_norm(a - b, order, dim=-1)
    outputs_apart = torch.linalg.vector_norm(pool(a) - pool(b), order, dim=-1)
    ratios: NDArray[np.float64] = (outputs_apart / inputs_apart).numpy()
    return ratios


def random_pairs(values: int, pairs: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Draw inputs of several scales, and for each another at a distance of any magnitude."""
    a = rng.standard_normal((pairs, values)) * rng.choice(_SCALES, (pairs, 1))
    step = rng.standard_normal((pairs, values)) * 10 ** rng.uniform(_SHORTEST, _LONGEST, (pairs, 1))
    return torch.from_numpy(a), torch.from_numpy(a + step)


def _gradients(windows: Tensor) -> Tensor:
    weights = windows.softmax(-1)
    return weights * (1 + windows - (weights * windows).sum(-1, keepdim=True))


def _places(pool: Pool, values: int) -> Tensor:
    """Return the indices of the values in each window: V × k̂²."""
    pool.check(values)
    map_ = torch.arange(values).view(pool.rows, -1)
    windows = map_.unfold(0, pool.kernel, pool.stride).unfold(1, pool.kernel, pool.stride)
    return windows.reshape(-1, pool.kernel**2)


def _maximise(objective: Objective, values: int, starts: int, rng: Generator) -> Steepest:
    """Climb by gradient ascent from all starts at once, then by L-BFGS from the best end."""
    # Scales in turn, so that even a few starts have each of them.
    scales = np.resize(_SCALES, (starts, 1))
    with one_thread():
        c = torch.from_numpy(rng.standard_normal((starts, values)) * scales)
        ends = _ascend(objective, c)
        return _polish(objective, ends[objective(ends).argmax()])


def _ascend(objective: Objective, c: Tensor) -> Tensor:
    """Climb by Adam with shrinking steps; written out, as torch.optim takes seconds to import."""
    mean = torch.zeros_like(c)
    square = torch.zeros_like(c)
    for i in range(1, _STEPS + 1):
        at = c.requires_grad_()
        (slope,) = torch.autograd.grad(objective(at).sum(), at)
        mean = torch.lerp(slope, mean, _BETA_MEAN)
        square = torch.lerp(slope**2, square, _BETA_SQUARE)
        step = mean / (1 - _BETA_MEAN**i) / (torch.sqrt(square / (1 - _BETA_SQUARE**i)) + _EPSILON)
        c = c.detach() + _RATE * (1 - i / _STEPS) * step
    return c


def _polish(objective: Objective, start: Tensor) -> Steepest:
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    def negative(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        at = torch.from_numpy(point).requires_grad_()
        value = -objective(at[None])[0]
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    # Adam's last steps are tiny, but L-BFGS still gains the last digits.
    options = {"maxiter": _STEPS}
    optimum = minimize(negative, start.numpy(), jac=True, method="L-BFGS-B", options=options)
    return Steepest(-float(optimum.fun), torch.from_numpy(optimum.x))
