"""Exact samples of the discrete Gaussian distribution, from the operating system's randomness.

It gives the whole number y a probability in proportion to exp(−y² / 2σ²). Floating-point samples
would have gaps, by which an attacker can tell what they were added to; here only whole numbers are
drawn and compared, so every probability is exactly as it should be.

After Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020): propose
y from the discrete Laplace distribution of scale σ, and accept it with the probability
exp(−(|y| − σ)² / 2σ²). With a whole σ, every exponent here is a sum of terms between 0 and 1 that
are products of 1/2 and U/σ for a whole U. So 64 bits are enough, and numpy draws many at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from fedrfq.prototypes.fixed_point import Bools, Ints

# Returns so many random bytes.
Source = Callable[[int], bytes]
# Tosses a coin for each of some samples.
Coin = Callable[[Ints], Bools]
# Proposals reach 50 σ and more with a probability below 2⁻⁷⁰, and must fit 64 bits.
MAX_SIGMA = 1 << 50


def discrete_gaussian(sigma: int, size: int, source: Source = os.urandom) -> Ints:
    """Return independent samples with the parameter σ, a whole number of at least 1.

    Noise that protects anybody comes from `os.urandom`; only tests give another source.
    """
    assert 1 <= sigma <= MAX_SIGMA, f"sigma is {sigma}: expected 1 to {MAX_SIGMA}"
    found = np.zeros(0, np.int64)
    while len(found) < size:
        found = np.concatenate([found, _accepted(sigma, size - len(found), source)])
    return found


def uniform(end: int, size: int, source: Source) -> Ints:
    """Return numbers from 0 to below `end`, all equally likely."""
    mask = np.uint64((1 << (end - 1).bit_length()) - 1)
    drawn = np.zeros(size, np.int64)
    missing = np.arange(size)
    while len(missing):
        words = np.frombuffer(source(8 * len(missing)), "<u8") & mask
        # Those that are too large are drawn again: a remainder would favour small numbers.
        fits = words < np.uint64(end)
        drawn[missing[fits]] = words[fits].astype(np.int64)
        missing = missing[~fits]
    return drawn


def _accepted(sigma: int, size: int, source: Source) -> Ints:
    """Return the samples that come of so many proposals."""
    rest_N = uniform(sigma, size, source)

    def below(numerator_N: Ints) -> Coin:
        """Return coins that show heads with the probability numerator / σ."""
        return lambda some: uniform(sigma, len(some), source) < numerator_N[some]

    def half(some: Ints) -> Bools:
        heads: Bools = uniform(2, len(some), source) == 0
        return heads

    def half_square(numerator_N: Ints) -> Coin:
        """Return coins of the probability (numerator / σ)² / 2."""
        coin = below(numerator_N)
        return lambda some: coin(some) & coin(some) & half(some)

    # The discrete Laplace distribution: |y| = U + σ·V.
    whole_N = _successes(size, _sure, source)
    kept_N = _exp(below(rest_N), np.arange(size), source)
    negative_N = half(np.arange(size))
    kept_N &= ~(negative_N & (rest_N + whole_N == 0))
    # (|y| − σ)² / 2σ² is (1 − u)² / 2 for V = 0, and (v + u)² / 2 with v = V − 1 otherwise.
    near = np.flatnonzero(kept_N & (whole_N == 0))
    kept_N[near] = _exp(half_square(sigma - rest_N), near, source)
    far = np.flatnonzero(kept_N & (whole_N > 0))
    kept_N[far] = _exp(half_square(rest_N), far, source)
    steps_N = np.maximum(whole_N - 1, 0)
    _repeated(kept_N, steps_N, below(rest_N), source)
    _repeated(kept_N, steps_N**2, half, source)
    magnitude_N = rest_N + sigma * whole_N
    return np.where(negative_N, -magnitude_N, magnitude_N)[kept_N]


def _sure(some: Ints) -> Bools:
    return np.ones(len(some), np.bool_)


def _exp(coin: Coin, some: Ints, source: Source) -> Bools:
    """Toss coins of the probability exp(−x), for some samples, where `coin` shows heads with x.

    A coin of x/1, one of x/2, one of x/3 and so on are tossed until one shows tails. That this is
    the first, third, fifth, … has the probability 1 − x + x²/2 − x³/6 + … = exp(−x).
    """
    heads = np.zeros(len(some), np.bool_)
    going = np.arange(len(some))
    number = 1
    while len(going):
        on = coin(some[going]) & (uniform(number, len(going), source) == 0)
        heads[going[~on]] = number % 2 == 1
        going = going[on]
        number += 1
    return heads


def _successes(size: int, coin: Coin, source: Source) -> Ints:
    """Return how often coins of exp(−x) show heads before the first tails."""
    times_N = np.zeros(size, np.int64)
    going = np.arange(size)
    while len(going):
        going = going[_exp(coin, going, source)]
        times_N[going] += 1
    return times_N


def _repeated(kept_N: Bools, times_N: Ints, coin: Coin, source: Source) -> None:
    """Drop samples unless a coin of exp(−x) shows heads as often as told."""
    number = 0
    while len(going := np.flatnonzero(kept_N & (times_N > number))):
        kept_N[going] = _exp(coin, going, source)
        number += 1
