"""example-pooling: the middle of each window's range."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

import fedrfq
from fedrfq.prototypes.pooling import Pool


@fedrfq.register("pooling", "example-pooling")
def example_pooling(c: Tensor, pool: Pool) -> Tensor:
    """The middle between the smallest and the largest value of each window."""
    # A prototype of D values is a map of `pool.rows` rows; leading dimensions are any.
    maps = c.reshape(-1, 1, pool.rows, c.shape[-1] // pool.rows)
    high = F.max_pool2d(maps, pool.kernel, pool.stride)
    low = -F.max_pool2d(-maps, pool.kernel, pool.stride)
    # The size must be that of `pool.size(D)`.
    return ((high + low) / 2).reshape(*c.shape[:-1], pool.size(c.shape[-1]))
