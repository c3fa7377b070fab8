"""Attacks on noisy statistics of a public map: what the noise leaves to an attacker.

The strongest attacker knows all of a client's samples of a class but one. It adds up those it
knows, and looks how far the upload lies from that sum in the direction of the target. Noise is
drawn anew for every question, as a client would draw it: a run has one upload of each client, too
few to measure anything by.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.leakage.known_others import best_auc
from fedrfq.leakage.roc import Floats, Scored
from fedrfq.privacy.discrete_gaussian import Source
from fedrfq.privacy.mechanism import NoisyStatistics, clipped, noisy_statistics
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Ints, Precision
from fedrfq.prototypes.noise_scale import NoiseScale
from fedrfq.prototypes.pooling import Pool

# The vectors of some samples.
Vectors = NDArray[np.floating]
_UNPOOLED = Pool("none")
# Questions whose noise is drawn at once.
_TOGETHER = 100


@dataclass(frozen=True)
class NoisyForm:
    """Uploads with noise, in the form in which `UploadForm` has those without."""

    scale: NoiseScale
    precision: Precision
    pool: Pool = _UNPOOLED
    source: Source = os.urandom

    def uploads(self, own_FND: Tensor) -> Floats:
        """Return each federation's upload: a noisy mean."""
        return self.drawn(list(self.pool(own_FND).numpy())).values_JV / 2.0**FRACTION_BITS

    def features(self, targets_FTD: Tensor) -> Floats:
        """Return what each target adds to a mean."""
        features: Floats = self.pool(targets_FTD).double().numpy()
        return features

    def drawn(self, uploads: Sequence[Vectors]) -> NoisyStatistics:
        """Return what clients upload of samples of one class each, with fresh noise.

        Every upload is drawn as if it were a class of one client: noise is independent anyway.
        """
        labels_N = np.repeat(np.arange(len(uploads)), [len(own_NV) for own_NV in uploads])
        declared_J = np.ones(len(uploads), np.bool_)
        return noisy_statistics(
            np.concatenate(uploads),
            labels_N,
            declared_J,
            self.scale,
            self.precision,
            source=self.source,
        )

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the noise in each value of a class's sum."""
        return self.scale.sigma / 2.0**FRACTION_BITS

    @property
    def most(self) -> float:
        """Return the AUC that no attacker exceeds who asks whether a sample was there at all."""
        sensitivity = float(np.hypot(self.scale.length, self.scale.one))
        return best_auc(sensitivity / self.scale.sigma)


def known_others(classes: Sequence[Vectors], form: NoisyForm, questions: int) -> Scored:
    """Ask whether a sample was there, half of the time when it was; all others are known.

    `classes` has the vectors of some uploads' samples; each question is about one of them.
    """
    scores: list[float] = []
    for first in range(0, questions, _TOGETHER):
        asked = [_question(classes, n) for n in range(first, min(first + _TOGETHER, questions))]
        sent = form.drawn([own_NV for own_NV, _, _ in asked])
        for count, values_V, (_, others_NV, target_V) in zip(
            sent.counts_J.tolist(), sent.values_JV, asked, strict=True
        ):
            scores.append(_score(count, values_V, others_NV, target_V, form.scale))
    numbers = np.arange(questions)
    # Noise is fresh in every question, so each pair of them stands for itself.
    return Scored(np.array(scores), numbers % 2 == 0, numbers // 2)


def _question(classes: Sequence[Vectors], number: int) -> tuple[Vectors, Vectors, Vectors]:
    """Return the samples behind an upload, all but the target, and the target.

    The target is among the samples in questions of even numbers.
    """
    own_NV = classes[number // 2 % len(classes)]
    target = number // (2 * len(classes)) % len(own_NV)
    others_NV = np.delete(own_NV, target, 0)
    if number % 2 == 0:
        return own_NV, others_NV, own_NV[target]
    return others_NV, others_NV, own_NV[target]


def _score(
    count: int, values_V: Ints, others_NV: Vectors, target_V: Vectors, scale: NoiseScale
) -> float:
    """Return how far an upload lies from the others' sum in the direction of the target."""
    moved_V = clipped(target_V[None], scale.length)[0]
    known_V = clipped(others_NV, scale.length).sum(0)
    rest_V = (count * values_V - known_V).astype(np.float64)
    counted = (count - len(others_NV)) * scale.one**2
    return float(rest_V @ moved_V) + counted
