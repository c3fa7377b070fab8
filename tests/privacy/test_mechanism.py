"""What one sample can change, and that everything uploaded has its noise."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from fedrfq.errors import UserError
from fedrfq.privacy import mechanism
from fedrfq.privacy.mechanism import class_sums, clipped, evenly, noisy_statistics
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import MAX_COUNT, Precision
from support.noise import fixed_bytes

VALUES = 32
NORM = math.sqrt(VALUES)
SCALE = Privacy(noise=2.0).scale(NORM, VALUES)
ALL = np.ones(3, np.bool_)


@cache
def samples(number: int, seed: int = 0, length: float = 1.0) -> np.ndarray:
    z_NV = np.random.default_rng(seed).normal(size=(number, VALUES))
    return z_NV * (length * NORM / np.linalg.norm(z_NV, axis=1, keepdims=True))


def exact_square(q_V: np.ndarray) -> int:
    return sum(int(value) ** 2 for value in q_V)


@pytest.mark.parametrize("length", [0.5, 1.0, 1.0 + 1e-12, 3.0, 1e4])
def test_no_vector_of_whole_numbers_is_too_long(length: float) -> None:
    """Rounding makes half of all vectors of the norm C longer: so it comes before clipping."""
    for q_V in clipped(samples(200, length=length), SCALE.length):
        assert exact_square(q_V) <= SCALE.length**2


def test_all_values_that_are_rounded_up_are_clipped_too() -> None:
    """Clipped first, this vector has the norm C to the last bit, and is longer once rounded."""
    length = SCALE.length
    each = math.floor(length / math.sqrt(VALUES)) + 0.5 + 1e-9
    z_NV = np.full((1, VALUES), each / 2**14)
    assert np.linalg.norm(z_NV) * 2**14 <= length + VALUES
    assert VALUES * round(each) ** 2 > length**2
    assert exact_square(clipped(z_NV, length)[0]) <= length**2


@pytest.mark.parametrize("length", [1e6, 1e12, 1e36])
def test_vectors_far_beyond_the_norm_are_clipped(length: float) -> None:
    """Their squares do not fit 64 bits: added up in these, some would look short.

    A map computes in 32-bit floats, which end at 3 × 10³⁸.
    """
    for q_V in clipped(samples(20, length=length), SCALE.length):
        assert SCALE.length**2 * 0.99 <= exact_square(q_V) <= SCALE.length**2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_no_number_is_as_if_it_were_0(value: float) -> None:
    z_NV = samples(3)
    z_NV[1, 0] = value
    q_NV = clipped(z_NV, SCALE.length)
    assert not q_NV[1].any()
    assert (q_NV[::2] == clipped(samples(3), SCALE.length)[::2]).all()


def test_a_norm_whose_squares_do_not_fit_is_refused() -> None:
    assert Privacy(noise=2.0).scale(2.0**16, VALUES).length ** 2 < 2**62
    with pytest.raises(UserError, match=r"public\.norm = 65537 is too large"):
        Privacy(noise=2.0).scale(2.0**16 + 1, VALUES)


def test_what_is_short_enough_stays_as_it_is() -> None:
    z_NV = samples(50, length=0.9)
    assert (clipped(z_NV, SCALE.length) == np.rint(z_NV * 2**14)).all()


def test_clipping_loses_next_to_nothing() -> None:
    z_NV = samples(50)
    assert np.abs(clipped(z_NV, SCALE.length) / 2**14 - z_NV).max() < 2e-3


@pytest.mark.parametrize("left_out", range(10))
def test_one_sample_changes_sum_and_count_jointly_by_no_more_than_the_sensitivity(
    left_out: int,
) -> None:
    z_NV = samples(10, length=5.0)
    y_N = np.arange(10) % 3
    rest = np.delete(np.arange(10), left_out)
    everything = class_sums(clipped(z_NV, SCALE.length), y_N, 3, SCALE.one)
    without = class_sums(clipped(z_NV[rest], SCALE.length), y_N[rest], 3, SCALE.one)
    change = exact_square((everything - without).ravel())
    # The noise is at least the multiplier times the root of it.
    assert 2.0**2 * change <= SCALE.sigma**2
    assert change >= SCALE.one**2


def test_the_count_takes_its_share_of_the_protection() -> None:
    for share in (0.01, 0.1, 0.5, 0.9):
        scale = Privacy(noise=2.0, count_share=share).scale(NORM, VALUES)
        found = scale.one**2 / (scale.length**2 + scale.one**2)
        assert found == pytest.approx(share, rel=1e-3)


def upload(seed: int = 0, number: int = 300, **options: object) -> mechanism.NoisyStatistics:
    y_N = np.zeros(number, np.int64)
    arguments = {"declared_J": ALL, "scale": SCALE, "precision": Precision(8)} | options
    return noisy_statistics(samples(number), y_N, source=fixed_bytes(seed), **arguments)  # type: ignore[arg-type]


def test_every_value_of_every_declared_class_has_its_noise() -> None:
    """Means times counts differ from the true sums by noise of σ, in empty classes as well."""
    scale = Privacy(noise=0.5).scale(NORM, VALUES)
    found = upload(scale=scale, precision=Precision(24))
    truth_JW = class_sums(clipped(samples(300), scale.length), np.zeros(300, np.int64), 3, 1)
    noise_JV = found.values_JV * found.counts_J[:, None] - truth_JW[:, :-1]
    # Values of a mean over 300 samples are rounded to 300 times the grid.
    assert (noise_JV[0] != 0).all()
    assert 0.8 < noise_JV[0].std() / scale.sigma < 1.2
    assert (found.counts_J > 0).all()
    assert found.values_JV[1:].std() > 0


def test_the_count_has_noise() -> None:
    counts = [int(upload(seed).counts_J[0]) for seed in range(60)]
    deviation = SCALE.sigma / SCALE.one
    assert abs(np.mean(counts) - 300) < 4 * deviation / math.sqrt(60)
    assert 0.7 < np.std(counts) / deviation < 1.3


def test_means_times_counts_are_not_biased() -> None:
    """Nothing is clipped after the noise was added: sums over many uploads come out right."""
    precision = Precision(24)
    total_V = np.zeros(VALUES)
    for seed in range(60):
        found = upload(seed, precision=precision)
        total_V += found.values_JV[0] * found.counts_J[0]
    truth_V = clipped(samples(300), SCALE.length).sum(0)
    error_V = (total_V / 60 - truth_V) / (SCALE.sigma / math.sqrt(60))
    assert np.abs(error_V).max() < 5


def test_undeclared_classes_are_never_uploaded() -> None:
    found = upload(declared_J=np.array([False, True, False]))
    assert found.counts_J[[0, 2]].tolist() == [0, 0]
    assert not found.values_JV[[0, 2]].any()
    assert found.counts_J[1] >= 1


def test_no_class_at_all_is_an_empty_upload() -> None:
    found = upload(declared_J=~ALL)
    assert not found.counts_J.any()
    assert not found.values_JV.any()


def test_counts_stay_between_1_and_the_most_a_message_carries() -> None:
    """Noise makes counts of empty classes negative, and huge noise makes them huge."""
    counts = np.concatenate([upload(seed).counts_J[1:] for seed in range(10)])
    assert counts.min() == 1
    huge = Privacy(noise=1e6).scale(NORM, VALUES)
    wild = np.concatenate([upload(seed, scale=huge).counts_J for seed in range(10)])
    assert wild.min() == 1
    assert wild.max() == MAX_COUNT


def test_saturated_values_are_cut_and_counted() -> None:
    precision = Precision(8)
    huge = Privacy(noise=1e6).scale(NORM, VALUES)
    found = upload(scale=huge)
    end = precision.most * precision.step
    assert np.abs(found.values_JV).max() == end
    assert found.saturated == (np.abs(found.values_JV) == end).sum()
    assert upload(number=3000, scale=Privacy(noise=0.5).scale(NORM, VALUES)).saturated < 3 * VALUES


def test_values_are_on_the_messages_grid() -> None:
    for bits in (4, 8, 12):
        assert not (upload(precision=Precision(bits)).values_JV % Precision(bits).step).any()


def test_a_clients_samples_are_limited_where_the_client_is_protected() -> None:
    """However many samples it has, it changes no more than the noise hides."""
    privacy = Privacy(noise=2.0, unit="client", samples=20)
    scale = privacy.scale(NORM, VALUES)
    some = evenly(1000, privacy.samples)
    assert len(some) == len(set(some.tolist())) == 20
    # The worst case: all samples alike, in one class.
    q_NV = clipped(np.repeat(samples(1, length=2.0), 20, axis=0), scale.length)
    sums_JW = class_sums(q_NV, np.zeros(20, np.int64), 3, scale.one)
    assert 2.0**2 * exact_square(sums_JW.ravel()) <= scale.sigma**2
    assert evenly(5, 20).tolist() == [0, 1, 2, 3, 4]
    assert evenly(0, 20).tolist() == []
    found = upload(scale=scale, most=20, precision=Precision(24))
    assert found.counts_J[0] < 300
