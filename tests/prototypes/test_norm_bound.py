"""Statistics on a public feature map are refused if they are longer than clipped features allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.class_statistics import moment_rows, statistics
from fedrfq.prototypes.fixed_point import MAX_COUNT, Precision, Uploads, admit, encode, refuses
from fedrfq.prototypes.norm_bound import NormBound

ONE = 2**14
FINE = Precision(24)
# One class and two rows of moments, of two values each; the norm is 5.
BOUND = NormBound.of(5.0, 1, 2, 2, FINE)
# Seven samples of the class.
COUNTS = np.full(3, 7)


def rows(mean: tuple[int, int], *moments: tuple[int, int]) -> np.ndarray:
    return np.array([mean, *moments, *[(0, 0)] * (2 - len(moments))], np.int64)


def test_the_edge_of_a_class_mean_by_hand() -> None:
    """3² + 4² = 5², and rounding two values adds √2 halves of a step, counted as one step."""
    assert BOUND.largest_mean == (5 * ONE + 1) ** 2
    assert BOUND.problem(COUNTS, rows((3 * ONE, 4 * ONE))) is None
    assert BOUND.problem(COUNTS, rows((0, 5 * ONE + 1))) is None
    why = BOUND.problem(COUNTS, rows((0, 5 * ONE + 2)))
    assert why is not None
    assert "the mean of class 0 has the norm 5.00012: features are clipped to 5" in why


def test_the_edge_of_the_second_moments_by_hand() -> None:
    """Four values of 12.5 have the norm 25 = 5², and rounding four values adds one step."""
    part = 25 * ONE // 2
    assert BOUND.problem(COUNTS, rows((0, 0), (part, part), (part, part))) is None
    assert BOUND.problem(COUNTS, rows((0, 0), (25 * ONE + 1, 0))) is None
    why = BOUND.problem(COUNTS, rows((0, 0), (25 * ONE + 2, 0)))
    assert why is not None
    assert "second moments have the norm" in why
    assert "at most 25" in why


def test_beside_long_means_there_is_little_room_for_second_moments() -> None:
    """A mean of norm 3 leaves a trace of 5² − 3² = 16.

    Rounding may have made it longer by a step, for which 2 · 3 steps of the trace are allowed, and
    moved the moments by one more, of which a trifle is missing.
    """
    edge = 16 * ONE + 6
    assert BOUND.problem(COUNTS, rows((3 * ONE, 0), (edge, 0))) is None
    why = BOUND.problem(COUNTS, rows((3 * ONE, 0), (edge + 1, 0)))
    assert why is not None
    assert "with these class means, at most 16" in why


def test_moments_are_summed_beyond_64_bits() -> None:
    """The rows fit into 64 bits one by one, and their sum does not."""
    huge = np.full((301, 2**16 - 1), 2**20 - 1, np.int64)
    huge[0] = 0
    counts = np.full(301, 1)
    bound = NormBound.of(1.0, 1, 300, 2**16 - 1, FINE)
    assert "second moments have the norm" in (bound.problem(counts, huge) or "")


@settings(deadline=None, max_examples=50)
@given(
    st.integers(4, 24),
    st.integers(1, 12),
    st.floats(0.5, 4),
    st.integers(0, 2**32 - 1),
)
def test_what_an_honest_client_sends_is_admitted(
    bits: int, values: int, norm: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    precision = Precision(bits)
    x_NV = rng.normal(size=(9, values))
    # Float32 features, clipped in float32, are at most a rounding error too long.
    x_NV *= norm * (1 - 1e-6) / np.linalg.norm(x_NV, axis=1, keepdims=True)
    mean_V = torch.from_numpy(x_NV.mean(0)).float()[None, None]
    values_KJV, _, _ = quantise(mean_V, precision)
    bound = NormBound.of(norm, 1, 0, values, precision)
    assert bound.problem(np.array([9]), values_KJV[0]) is None


@pytest.mark.parametrize("bits", [8, 12, 24])
def test_one_edge_for_messages_and_for_numbers(bits: int) -> None:
    """`refuses`, `admit` and `checked` draw the line at the same step."""
    precision = Precision(bits)
    bound = NormBound.of(3.0, 2, 0, 1, precision)
    longest = math.isqrt(bound.largest_mean) // precision.step
    for steps, refused in ((longest, False), (-longest, False), (longest + 1, True)):
        values_JV = np.array([[0], [steps]], np.int64) * precision.step
        counts_J = np.array([0, 9], np.int64)
        message = encode(1, 4, counts_J, values_JV, precision)
        why = refuses(1, 4, message, 2, 1, precision=precision, bound=bound)
        assert (why is not None) == refused
        admitted = admit(1, {4: message}, 2, 1, precision, bound)
        checked = Uploads((4,), counts_J[None], values_JV[None], precision=precision).checked(bound)
        for found in (admitted, checked):
            assert dict(found.refused) == ({4: why} if refused else {})
            assert found.clients == (() if refused else (4,))


def test_a_row_that_is_not_sent_is_not_measured() -> None:
    values_KJV = np.array([[[9 * ONE, 0], [0, 0], [0, 0]]], np.int64)
    uploads = Uploads((0,), np.array([[0, 0, 0]]), values_KJV)
    assert not uploads.checked(BOUND).refused


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ([3, 4, 7, 7], ""),
        ([0, 0, 0, 0], ""),
        ([MAX_COUNT, 4, MAX_COUNT, MAX_COUNT], ""),
        ([3, 4, MAX_COUNT, MAX_COUNT], "second moments of 1048576 samples"),
        ([3, 4, 7, 8], "second moments of 8 samples: those of its classes are 7"),
        ([3, 4, 7, 0], "second moments of 0 samples"),
        ([0, 0, 1, 1], "those of its classes are 0"),
    ],
)
def test_second_moments_count_the_samples_of_all_classes(counts: list[int], problem: str) -> None:
    """Nobody compares them, so a client with few samples must not outweigh all others in them."""
    bound = NormBound.of(5.0, 2, 2, 1, FINE)
    counts_J = np.array(counts)
    values_JV = np.where(counts_J > 0, 1, 0)[:, None]
    message = encode(1, 4, counts_J, values_JV, FINE)
    why = refuses(1, 4, message, 4, 1, precision=FINE, bound=bound)
    assert (why is None) == (problem == "")
    assert problem in (why or "")
    admitted = admit(1, {4: message}, 4, 1, FINE, bound)
    checked = Uploads((4,), counts_J[None], values_JV[None], precision=FINE).checked(bound)
    assert admitted.refused.get(4) == checked.refused.get(4) == why


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 24), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_an_honest_clients_second_moments_are_admitted(
    bits: int, values: int, samples: int, seed: int
) -> None:
    """Also where all samples of a class are alike, and the bound is tight."""
    rng = np.random.default_rng(seed)
    norm = values**0.5
    x_NV = rng.normal(size=(samples, values)) * rng.choice([0.0, 0.01, 1.0], size=(samples, 1))
    x_NV[:, 0] += rng.normal()
    lengths_N1 = np.linalg.norm(x_NV, axis=1, keepdims=True)
    z_NV = torch.from_numpy((x_NV * norm / np.maximum(lengths_N1, 1e-12)).astype(np.float32))
    y_N = torch.from_numpy(rng.integers(0, 3, samples))
    counts_R, values_RV = statistics(z_NV, y_N, 3, moments=True)
    precision = Precision(bits)
    quantised, _, _ = quantise(values_RV[None], precision)
    bound = NormBound.of(norm, 3, moment_rows(values), values, precision)
    assert bound.problem(counts_R.numpy(), quantised[0]) is None
