"""Gaussian noise rounded to whole numbers, from the operating system's randomness.

Added to whole numbers it is a continuous Gaussian added and the result rounded, and rounding only
forgets: what is proven of continuous noise holds. On a grid that is coarse beside the gaps between
floating-point numbers there are no gaps to recognise a sum by, either. Box and Muller's way of 64
bits reaches 9.4 σ; an ideal Gaussian goes beyond with a probability below 10⁻²⁰.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from fedrfq.privacy.discrete_gaussian import Source


def rounded_gaussian(sigma: float, size: int, source: Source = os.urandom) -> NDArray[np.float64]:
    """Return independent whole numbers with the standard deviation σ."""
    pairs = -(-size // 2)
    # Never 0, of which there is no logarithm.
    radius_P = np.sqrt(-2 * np.log(chances(pairs, source) + 2.0**-64))
    angle_P = 2 * np.pi * chances(pairs, source)
    values = np.concatenate([radius_P * np.cos(angle_P), radius_P * np.sin(angle_P)])
    whole: NDArray[np.float64] = np.rint(sigma * values[:size])
    return whole


def chances(size: int, source: Source = os.urandom) -> NDArray[np.float64]:
    """Return numbers from 0 to below 1, all equally likely."""
    words = np.frombuffer(source(8 * size), "<u8")
    # The largest would be rounded up to 1.
    return np.minimum(words * 2.0**-64, 1 - 2.0**-53)
