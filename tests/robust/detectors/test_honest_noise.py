"""Detectors know how much noise honest clients add, and do not take it for lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrfq.privacy.mechanism import noisy_statistics
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Globals, Precision, Uploads
from fedrfq.prototypes.norm_bound import NormBound
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.detectors.detector import FULL, Detector
from fedrfq.robust.detectors.sampling import Sampling
from fedrfq.robust.honest_noise import SPARE_BITS, noise_squares
from support.noise import fixed_bytes

VALUES = 48
NORM = VALUES**0.5
CLASSES = 3
DETECTORS: list[Detector] = [Sampling(), AdaptiveDetector()]
# From very few samples to many: noise moves the mean of few by far more.
COUNTS = [4, 8, 15, 30, 60, 120, 250, 500]


def uploads(noise: float, seed: int = 0) -> Uploads:
    """Return what clients with very different numbers of samples upload, with noise."""
    rng = np.random.default_rng(seed)
    centres_JV = rng.normal(size=(CLASSES, VALUES))
    scale = Privacy(noise=noise).scale(NORM, VALUES)
    precision = Precision(12)
    drawn = []
    for client, samples in enumerate(COUNTS):
        y_N = np.repeat(np.arange(CLASSES), samples)
        z_NV = centres_JV[y_N] + rng.normal(size=(len(y_N), VALUES))
        z_NV *= NORM / np.linalg.norm(z_NV, axis=1, keepdims=True)
        declared_J = np.ones(CLASSES, np.bool_)
        source = fixed_bytes(100 * seed + client)
        drawn.append(noisy_statistics(z_NV, y_N, declared_J, scale, precision, source=source))
    return Uploads(
        tuple(range(len(COUNTS))),
        np.stack([one.counts_J for one in drawn]),
        np.stack([one.values_JV for one in drawn]),
        precision=precision,
        noise=scale,
    )


def weights(detector: Detector, sent: Uploads) -> np.ndarray:
    nothing = Globals.none(CLASSES, VALUES)
    counted = detector.admitted(sent)
    _, verdict = detector.judge(detector.start(len(COUNTS)), nothing, counted)
    found: np.ndarray = verdict.weight_KJ
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("detector", DETECTORS, ids=["sampling", "adaptive"])
def test_honest_noise_costs_nobody_any_weight(detector: Detector, seed: int) -> None:
    for noise in (0.5, 2.0, 4.0):
        assert (weights(detector, uploads(noise, seed)) == FULL).all()


@pytest.mark.parametrize("detector", DETECTORS, ids=["sampling", "adaptive"])
def test_the_same_detector_without_the_scale_would_punish_it(detector: Detector) -> None:
    lost = [
        (weights(detector, replace(uploads(2.0, seed), noise=None)) < FULL).any()
        for seed in range(5)
    ]
    assert any(lost)


@pytest.mark.parametrize("detector", DETECTORS, ids=["sampling", "adaptive"])
def test_a_liar_with_many_samples_is_still_found(detector: Detector) -> None:
    """With 500 samples noise is small, so what is far off is a lie."""
    honest = uploads(0.5)
    values_KJV = honest.values_KJV.copy()
    values_KJV[-1] = -2 * values_KJV[-1]
    assert (weights(detector, replace(honest, values_KJV=values_KJV))[-1] < FULL).all()


def test_the_noise_of_means_by_hand() -> None:
    """σ² for each of the values, and what the count's noise does; divided by the count twice."""
    sent = uploads(2.0)
    assert sent.noise is not None
    count = int(sent.counts_KJ[3, 1])
    expected = (sent.noise.usual_square(VALUES) >> SPARE_BITS) // count**2
    assert int(noise_squares(sent)[3, 1]) == expected
    ratio = sent.noise.usual_square(VALUES) / sent.noise.sigma**2
    # Nine parts of the protection are the sum's, one is the count's.
    assert ratio == pytest.approx(VALUES + 9, rel=1e-3)
    assert not noise_squares(replace(sent, noise=None)).any()


@pytest.mark.parametrize("noise", [0.5, 2.0, 20.0])
def test_no_honest_upload_is_refused(noise: float) -> None:
    for seed in range(5):
        sent = uploads(noise, seed)
        bound = NormBound.of(NORM, CLASSES, 0, VALUES, sent.precision, sent.noise)
        assert sent.checked(bound).refused == {}


def test_noise_is_no_excuse_for_any_length() -> None:
    """A mean of 500 samples can hardly be longer than C, so twice that is refused."""
    sent = uploads(0.5)
    values_KJV = sent.values_KJV.copy()
    values_KJV[-1, 0] = 2 * 2**14
    bound = NormBound.of(NORM, CLASSES, 0, VALUES, sent.precision, sent.noise)
    refused = replace(sent, values_KJV=values_KJV).checked(bound).refused
    assert list(refused) == [len(COUNTS) - 1]
    assert "features are clipped to 6.9282, and noise explains" in refused[len(COUNTS) - 1]


def test_all_classes_or_none_where_that_was_agreed_on() -> None:
    bound = replace(NormBound.of(NORM, CLASSES, 0, VALUES, Precision(12)), all_classes=True)
    values_JV = np.zeros((CLASSES, VALUES), np.int64)
    assert bound.problem(np.array([1, 1, 1]), values_JV) is None
    assert bound.problem(np.array([0, 0, 0]), values_JV) is None
    why = bound.problem(np.array([1, 0, 1]), values_JV)
    assert why == "it has 2 classes: with noise, clients send all 3, or none"
