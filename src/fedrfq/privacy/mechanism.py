"""Noisy statistics of a client's classes, of which one sample more or less can hardly be told.

1. Each sample's features are rounded to the grid, and *then* clipped: the norm that counts is that
   of the whole numbers.
2. The samples of each declared class are summed, with one more value that counts them. A sample
   that comes or goes changes one sum, by at most the root of `length`² + `one`².
3. Discrete Gaussian noise is added to every value of every declared class, with samples or without.
   It comes from the operating system: who knows a seed could subtract it.
4. What is uploaded is made of these noisy sums alone: counts of at least 1, means on the message's
   grid and within its range. Whatever is done to noisy sums tells nothing more about the samples.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrfq.privacy.discrete_gaussian import Source, discrete_gaussian
from fedrfq.prototypes.fixed_point import FRACTION_BITS, MAX_COUNT, Bools, Ints, Precision
from fedrfq.prototypes.noise_scale import NoiseScale


class NoisyStatistics(NamedTuple):
    """The count and mean of each class as they are uploaded; a count of 0: not declared.

    `saturated` counts the values that had to be cut to the range of a message.
    """

    counts_J: Ints
    values_JV: Ints
    saturated: int


def noisy_statistics(
    z_NV: NDArray[np.floating],
    y_N: Ints,
    declared_J: Bools,
    scale: NoiseScale,
    precision: Precision,
    *,
    most: int = 0,
    source: Source = os.urandom,
) -> NoisyStatistics:
    """Return a client's statistics with noise, given its samples' features and labels.

    `declared_J` says which classes are uploaded; samples of others are left out. With `most`, no
    more samples than that count.
    """
    if most:
        some = evenly(len(y_N), most)
        z_NV = z_NV[some]
        y_N = y_N[some]
    sums_JW = class_sums(clipped(z_NV, scale.length), y_N, len(declared_J), scale.one)
    sums_JW[~declared_J] = 0
    rows = np.flatnonzero(declared_J)
    noise = discrete_gaussian(scale.sigma, len(rows) * sums_JW.shape[1], source)
    sums_JW[rows] += noise.reshape(len(rows), sums_JW.shape[1])
    return _as_uploaded(sums_JW, declared_J, scale.one, precision)


def evenly(samples: int, most: int) -> Ints:
    """Return the places of at most so many samples, evenly spread."""
    number = min(samples, most)
    return np.arange(number) * samples // max(number, 1)


def clipped(z_NV: NDArray[np.floating], length: int) -> Ints:
    """Return features as whole numbers on the grid; no vector is longer than `length`."""
    scaled_NV = z_NV.astype(np.float64) * 2.0**FRACTION_BITS
    # A model that has gone astray may give no numbers; such a sample is as if it were 0.
    scaled_NV[~np.isfinite(scaled_NV).all(1)] = 0
    # Far beyond the norm, squares would not fit 64 bits, and such a vector would look short.
    norm_N1 = np.linalg.norm(scaled_NV, axis=1, keepdims=True)
    scaled_NV *= np.minimum(1, 2 * length / np.maximum(norm_N1, 1))
    q_NV: Ints = np.rint(scaled_NV).astype(np.int64)
    square_N = np.einsum("nv,nv->n", q_NV, q_NV)
    long_N = np.flatnonzero(square_N > length**2)
    # Divided by the next larger whole number and rounded toward 0, which makes nothing longer.
    root_N1 = np.floor(np.sqrt(square_N[long_N].astype(np.float64))).astype(np.int64)[:, None] + 2
    q_NV[long_N] = np.sign(q_NV[long_N]) * (np.abs(q_NV[long_N]) * length // root_N1)
    return q_NV


def class_sums(q_NV: Ints, y_N: Ints, classes: int, one: int) -> Ints:
    """Return the sum of each class's samples, and in the last column what counts them."""
    sums_JW = np.zeros((classes, q_NV.shape[1] + 1), np.int64)
    np.add.at(sums_JW[:, :-1], y_N, q_NV)
    sums_JW[:, -1] = np.bincount(y_N, minlength=classes) * one
    return sums_JW


def _as_uploaded(
    noisy_JW: Ints, declared_J: Bools, one: int, precision: Precision
) -> NoisyStatistics:
    """Return counts and means; nothing here knows the samples."""
    counts_J = np.clip(_rounded(noisy_JW[:, -1], one), 1, MAX_COUNT)
    means_JV = _rounded(noisy_JW[:, :-1], counts_J[:, None])
    steps_JV = _rounded(means_JV, precision.step)
    cut_JV = np.clip(steps_JV, -precision.most, precision.most)
    return NoisyStatistics(
        counts_J * declared_J,
        cut_JV * precision.step * declared_J[:, None],
        int((cut_JV != steps_JV)[declared_J].sum()),
    )


def _rounded(number: Ints, divisor: Ints | int) -> Ints:
    """Return the nearest whole quotient; halves are rounded up."""
    quotient: Ints = (2 * number + divisor) // (2 * divisor)
    return quotient
