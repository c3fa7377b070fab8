"""Randomness that is the same in every test, where noise would come from the operating system."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def fixed_bytes(seed: int) -> Callable[[int], bytes]:
    """Return a source of bytes that a seed decides."""
    return np.random.default_rng(seed).bytes
