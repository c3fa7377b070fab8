"""The sampler's distribution against the exact one, and where its randomness comes from."""

from __future__ import annotations

import inspect
import math
import os

import numpy as np
import pytest
from scipy import stats

from fedrfq.privacy.discrete_gaussian import MAX_SIGMA, discrete_gaussian, uniform
from fedrfq.privacy.mechanism import noisy_statistics
from support.noise import fixed_bytes


def p_value(found: np.ndarray, values: np.ndarray, chance: np.ndarray) -> float:
    """Return the p-value of the χ² test; what is expected fewer than ten times is one cell."""
    expected = chance * len(found)
    common = expected >= 10
    counted = np.array([(found == value).sum() for value in values[common]])
    # A little more than 0, because all values may be common.
    rest = len(found) - expected[common].sum() + 1e-9
    observed = np.append(counted, len(found) - counted.sum() + 1e-9)
    wanted = np.append(expected[common], rest)
    return float(stats.chisquare(observed, wanted).pvalue)


@pytest.mark.parametrize("sigma", [1, 2, 3, 20])
def test_the_distribution_is_the_exact_one(sigma: int) -> None:
    found = discrete_gaussian(sigma, 60_000, fixed_bytes(sigma))
    values = np.arange(-40 * sigma, 40 * sigma + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    assert p_value(found, values, weights / weights.sum()) > 0.01


def test_the_test_sees_a_wrong_distribution() -> None:
    """A rounded normal distribution of the same σ is not the discrete Gaussian."""
    values = np.arange(-40, 41)
    weights = np.exp(-(values.astype(float) ** 2) / 2)
    wrong = np.rint(np.random.default_rng(0).normal(size=60_000)).astype(int)
    assert p_value(wrong, values, weights / weights.sum()) < 1e-6


def test_a_large_sigma_is_as_wide_as_it_should_be() -> None:
    """By the Kolmogorov-Smirnov distance from a normal distribution, which it is here."""
    sigma = 740_001
    found = discrete_gaussian(sigma, 62 * 1025, fixed_bytes(0))
    assert stats.kstest(found / sigma, "norm").pvalue > 0.01
    widest = discrete_gaussian(MAX_SIGMA, 1000, fixed_bytes(0))
    assert 0.9 < widest.std() / MAX_SIGMA < 1.1


def test_uniform_numbers_are_equally_likely() -> None:
    """Five of eight: taking remainders of three bits would favour 0, 1 and 2."""
    found = uniform(5, 50_000, fixed_bytes(1))
    assert p_value(found, np.arange(5), np.full(5, 0.2)) > 0.01
    assert not uniform(1, 100, fixed_bytes(1)).any()


def test_noise_comes_from_the_operating_system() -> None:
    for function in (discrete_gaussian, noisy_statistics):
        assert inspect.signature(function).parameters["source"].default is os.urandom


def test_no_seed_decides_the_noise() -> None:
    draws = []
    for _ in range(2):
        np.random.seed(0)
        draws.append(discrete_gaussian(1000, 100).tolist())
    assert draws[0] != draws[1]


def test_values_are_independent() -> None:
    found = discrete_gaussian(1000, 40_000, fixed_bytes(2)).astype(float)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 4 / math.sqrt(len(found))
