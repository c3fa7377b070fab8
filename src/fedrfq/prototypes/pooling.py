"""Pooling of prototypes (Eq. 6-8).

A prototype C of D values, seen as a 2D map, becomes a prototype P of V values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.errors import UserError, check_one_of
from fedrfq.files.options import check_ranges, option


@dataclass(frozen=True)
class Pool:
    """How prototypes are pooled.

    C is seen as a map of `rows` rows, with `kernel`×`kernel` windows every `stride`, no padding.
    """

    name: str = option(
        "softpool",
        "How the values in a window become one",
        "one of softpool, avg, max, adaptive-avg, adaptive-max, none, or a plugin's",
    )
    rows: int = option(
        2, "Rows of the 2D map that a prototype is folded into", "1 or more; divides the prototype"
    )
    kernel: int = option(
        2, "Side of a square pooling window, in values", "1 or more; at most the map's sides"
    )
    stride: int = option(1, "Values from one window to the next", "1 or more")

    def __post_init__(self) -> None:
        check_one_of("pool.name", self.name, POOLS, plugins=True)
        check_ranges("pool", self)

    def __call__(self, c: Tensor) -> Tensor:
        """Pool C [..., D] to P [..., V], in C's dtype; without synchronising host and device."""
        self.check(c.shape[-1])
        return POOLS[self.name](c, self)

    def size(self, d: int) -> int:
        """Return V, the number of values that `d` values are pooled to."""
        self.check(d)
        if self.name == "none":
            return d
        height, width = self.output(d)
        return height * width

    def output(self, d: int) -> tuple[int, int]:
        """Return height and width of the pooled map of `d` values."""
        columns = d // self.rows
        height = (self.rows - self.kernel) // self.stride + 1
        width = (columns - self.kernel) // self.stride + 1
        return height, width

    def check(self, d: int) -> None:
        """Raise UserError where prototypes of `d` values cannot be pooled like this."""
        if self.name == "none":
            return
        if d % self.rows:
            raise UserError(
                f"a prototype of {d} values cannot be folded into {self.rows} rows: "
                f"choose a pool.rows that divides {d}"
            )
        columns = d // self.rows
        if self.kernel > min(self.rows, columns):
            raise UserError(
                f"the {self.kernel}×{self.kernel} pooling kernel is larger than the "
                f"{self.rows}×{columns} map: lower pool.kernel or change pool.rows"
            )


def softpool(c: Tensor, pool: Pool) -> Tensor:
    """SoftPool (Eq. 7-8): the sum of each window's values, weighted by their softmax.

    Half types are accumulated in float32.
    """
    wide = c
    if c.dtype in (torch.float16, torch.bfloat16):
        wide = c.float()
    pooled: Tensor = _SoftPool.apply(wide, pool)  # type: ignore[no-untyped-call]
    return pooled.to(c.dtype)


class _SoftPool(torch.autograd.Function):
    """SoftPool with its gradient in closed form, dP/dc_i = w_i (1 + c_i − P).

    The place in the window is the first axis, where softmax and sums vectorise: forward and
    backward of 8,000 prototypes take a CPU less than half the time that F.unfold under autograd
    takes, and of 80 no longer.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, pool: Pool) -> Tensor:
        c = c.contiguous()
        height, width = pool.output(c.shape[-1])
        windows = _windows(c, pool).reshape(pool.kernel**2, -1)
        weights = windows.softmax(0)
        pooled = (weights * windows).sum(0)
        ctx.save_for_backward(windows, weights, pooled)
        ctx.pool = pool
        ctx.shape = c.shape
        return pooled.view(*c.shape[:-1], height * width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        check_first_derivative()
        windows, weights, pooled = ctx.saved_tensors
        terms = torch.addcmul(weights, weights, windows - pooled).mul_(grad.reshape(-1))
        total = terms.new_zeros(ctx.shape)
        targets = _windows(total, ctx.pool)
        places = [place for row in targets.unbind() for place in row.unbind()]
        # Windows overlap, but their values at one place in the window do not: each place is one
        # plain addition.
        for place, term in zip(places, terms.view(-1, *targets.shape[2:]).unbind(), strict=True):
            place.add_(term)
        return total, None


def check_first_derivative() -> None:
    """Raise RuntimeError in a gradient that is to be differentiated again.

    PyTorch's decorator for that, once_differentiable, takes a sixteenth of a step.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("this operation has no second derivative: do without create_graph")


def _windows(c: Tensor, pool: Pool) -> Tensor:
    """Return a view [kernel, kernel, N, height, width] of contiguous C.

    The first two axes are the place in the window, the others the window.
    """
    d = c.shape[-1]
    columns = d // pool.rows
    height, width = pool.output(d)
    sizes = (pool.kernel, pool.kernel, c.numel() // d, height, width)
    return c.as_strided(sizes, (columns, 1, d, columns * pool.stride, pool.stride))


def avg(c: Tensor, pool: Pool) -> Tensor:
    """The mean of each window."""
    return _flat(F.avg_pool2d(_map(c, pool), pool.kernel, pool.stride), c)


def maximum(c: Tensor, pool: Pool) -> Tensor:
    """The largest value of each window."""
    return _flat(F.max_pool2d(_map(c, pool), pool.kernel, pool.stride), c)


def adaptive_avg(c: Tensor, pool: Pool) -> Tensor:
    """The means of as many windows as `avg` has, spread evenly over the map."""
    return _flat(F.adaptive_avg_pool2d(_map(c, pool), pool.output(c.shape[-1])), c)


def adaptive_max(c: Tensor, pool: Pool) -> Tensor:
    """The maxima of as many windows as `max` has, spread evenly over the map."""
    return _flat(F.adaptive_max_pool2d(_map(c, pool), pool.output(c.shape[-1])), c)


def none(c: Tensor, pool: Pool) -> Tensor:
    """No pooling: a prototype is sent as it is."""
    return c


def _map(c: Tensor, pool: Pool) -> Tensor:
    """Return each prototype as a map, in the shape that torch's pooling takes."""
    return c.reshape(-1, 1, pool.rows, c.shape[-1] // pool.rows)


def _flat(pooled: Tensor, c: Tensor) -> Tensor:
    """Return pooled maps as prototypes, in the leading shape of C."""
    return pooled.reshape(*c.shape[:-1], pooled.shape[-2] * pooled.shape[-1])


POOLS: dict[str, Callable[[Tensor, Pool], Tensor]] = {
    "softpool": softpool,
    "avg": avg,
    "max": maximum,
    "adaptive-avg": adaptive_avg,
    "adaptive-max": adaptive_max,
    "none": none,
}
