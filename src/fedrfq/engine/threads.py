"""How many threads PyTorch's kernels have.

Where operations are small, or threads of the engine are at work, several threads of a kernel would
mostly wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run PyTorch's kernels on so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch's kernels on one thread inside the block."""
    with threads(1):
        yield
