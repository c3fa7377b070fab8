"""SoftPool's Lipschitz constants, found numerically: the supremum of its Jacobian's operator norm.

A window of values c gives p = Σ w c with w their softmax, so ∂p/∂c_j = w_j (1 + c_j − p). Between the max norms of a window
and of its one value the operator norm is Σ |∂p/∂c_j|, from L2 it is the gradient's L2 norm, and for a whole map, whose
windows may overlap, the Jacobian's largest singular value. Each is maximised from many random starts, in float64: what is
found is attained, so no constant can be smaller; that none is larger is what the starts and pairs of random inputs are for.
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

_SCALES = (
    0.5,
    1.0,
    2.0,
    4.0,
)  # of random inputs: where windows are mixed well, and where one value leads
# of the ascent, as Adam names them
_STEPS = 300
_RATE = 0.1
_MEAN = 0.9
_SQUARE = 0.999
_TINY = 1e-8
# steps between the inputs of a pair, as powers of ten
_SHORTEST = -4.0
_LONGEST = 1.0


@dataclass(frozen=True)
class Steepest:
    """The largest value found, and where: the map, or window."""

    value: float
    c: Tensor


def window(kernel: int) -> Pool:
    """SoftPool of one window: a map of k̂² values has no room for a second."""
    return Pool("softpool", kernel, kernel)


def jacobian(pool: Pool, c: Tensor) -> Tensor:
    """∂P/∂C of maps S × D: S × V × D."""
    places = _places(pool, c.shape[1]).expand(len(c), -1, -1)
    zeros = torch.zeros(*places.shape[:2], c.shape[1], dtype=c.dtype)
    return zeros.scatter(2, places, _gradients(c[:, places[0]]))


def steepest_max(pool: Pool, values: int, starts: int, rng: Generator) -> Steepest:
    """In the max norm: the largest sum of a row's absolute values."""
    return _maximised(lambda c: jacobian(pool, c).abs().sum(-1).amax(-1), values, starts, rng)


def steepest_l2(pool: Pool, values: int, starts: int, rng: Generator) -> Steepest:
    """In L2: the largest singular value."""
    return _maximised(lambda c: torch.linalg.matrix_norm(jacobian(pool, c), 2), values, starts, rng)


def pair_ratios(
    pool: Pool, steepest: Steepest, order: float, pairs: int, rng: Generator
) -> NDArray[np.float64]:
    """How much farther apart (in the norm of that order) outputs are than inputs, for random pairs: half of them
    anywhere, half of them where the constant was found. By the program's own pooling."""
    a, b = random_pairs(len(steepest.c), pairs, rng)
    b[: pairs // 2] += steepest.c - a[: pairs // 2]
    a[: pairs // 2] = steepest.c
    apart, outputs = (
        torch.linalg.vector_norm(x, order, dim=-1) for x in (a - b, pool(a) - pool(b))
    )
    ratios: NDArray[np.float64] = (outputs / apart).numpy()
    return ratios


def random_pairs(values: int, pairs: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Inputs of several scales, and others at several distances from them."""
    a = rng.standard_normal((pairs, values)) * rng.choice(_SCALES, (pairs, 1))
    step = rng.standard_normal((pairs, values)) * 10 ** rng.uniform(_SHORTEST, _LONGEST, (pairs, 1))
    return torch.from_numpy(a), torch.from_numpy(a + step)


def _gradients(windows: Tensor) -> Tensor:
    weights = windows.softmax(-1)
    return weights * (1 + windows - (weights * windows).sum(-1, keepdim=True))


def _places(pool: Pool, values: int) -> Tensor:
    """Which values each window has: V × k̂²."""
    pool.check(values)
    map_ = torch.arange(values).view(pool.rows, -1)
    return (
        map_.unfold(0, pool.kernel, pool.stride)
        .unfold(1, pool.kernel, pool.stride)
        .reshape(-1, pool.kernel**2)
    )


def _maximised(
    objective: Callable[[Tensor], Tensor], values: int, starts: int, rng: Generator
) -> Steepest:
    """Gradient ascent from all starts at once, and L-BFGS from where the best one ended."""
    scales = np.resize(_SCALES, (starts, 1))
    with one_thread():
        ended = _ascended(
            objective, torch.from_numpy(rng.standard_normal((starts, values)) * scales)
        )
        return _polished(objective, ended[objective(ended).argmax()])


def _ascended(objective: Callable[[Tensor], Tensor], c: Tensor) -> Tensor:
    """By Adam, with steps that shrink to nothing. Not torch.optim's, which takes seconds to import."""
    mean = square = torch.zeros_like(c)
    for i in range(1, _STEPS + 1):
        at = c.requires_grad_()
        (slope,) = torch.autograd.grad(objective(at).sum(), at)
        mean = torch.lerp(slope, mean, _MEAN)
        square = torch.lerp(slope**2, square, _SQUARE)
        step = mean / (1 - _MEAN**i) / (torch.sqrt(square / (1 - _SQUARE**i)) + _TINY)
        c = c.detach() + _RATE * (1 - i / _STEPS) * step
    return c


def _polished(objective: Callable[[Tensor], Tensor], start: Tensor) -> Steepest:
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    def negative(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        at = torch.from_numpy(point).requires_grad_()
        value = -objective(at[None])[0]
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    found = minimize(
        negative, start.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}
    )
    return Steepest(-float(found.fun), torch.from_numpy(found.x))
