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

_ONE_CLASS = np.ones(1, np.bool_)


@dataclass(frozen=True)
class NoisyForm:
    """Uploads with noise, in the form in which `UploadForm` has those without."""

    scale: NoiseScale
    precision: Precision
    source: Source = os.urandom

    def uploads(self, own_FND: Tensor) -> Floats:
        """Return each federation's upload: a noisy mean."""
        drawn = [self.drawn(own_ND.numpy()) for own_ND in own_FND]
        return np.concatenate([one.values_JV for one in drawn]) / 2.0**FRACTION_BITS

    def features(self, targets_FTD: Tensor) -> Floats:
        """Return what each target adds to a mean."""
        features: Floats = targets_FTD.double().numpy()
        return features

    def drawn(self, own_ND: NDArray[np.floating]) -> NoisyStatistics:
        """Return what a client uploads of samples of one class, with fresh noise."""
        labels_N = np.zeros(len(own_ND), np.int64)
        return noisy_statistics(
            own_ND, labels_N, _ONE_CLASS, self.scale, self.precision, source=self.source
        )

    @property
    def most(self) -> float:
        """Return the AUC that no attacker exceeds who asks whether a sample was there at all."""
        sensitivity = float(np.hypot(self.scale.length, self.scale.one))
        return best_auc(sensitivity / self.scale.sigma)


def known_others(
    classes: Sequence[NDArray[np.floating]], form: NoisyForm, questions: int
) -> Scored:
    """Ask whether a sample was there, half of the time when it was; all others are known.

    `classes` has the vectors of some uploads' samples; each question is about one of them.
    """
    scores = []
    members = []
    groups = []
    for number in range(questions):
        group = number // 2 % len(classes)
        own_NV = classes[group]
        target = number // (2 * len(classes)) % len(own_NV)
        is_member = number % 2 == 0
        others_NV = np.delete(own_NV, target, 0)
        sent = form.drawn(own_NV if is_member else others_NV)
        scores.append(_score(sent, others_NV, own_NV[target], form.scale))
        members.append(is_member)
        # Noise is fresh in every question, so each one stands for itself.
        groups.append(number // 2)
    return Scored(np.array(scores), np.array(members), np.array(groups))


def _score(
    sent: NoisyStatistics,
    others_NV: NDArray[np.floating],
    target_V: NDArray[np.floating],
    scale: NoiseScale,
) -> float:
    """Return how far the upload lies from the others' sum in the direction of the target."""
    moved_V = _whole(target_V[None], scale)[0]
    known_V = _whole(others_NV, scale).sum(0)
    count = int(sent.counts_J[0])
    rest_V = count * sent.values_JV[0] - known_V
    counted = (count - len(others_NV)) * scale.one**2
    return float(rest_V.astype(np.float64) @ moved_V) + counted


def _whole(z_NV: NDArray[np.floating], scale: NoiseScale) -> Ints:
    return clipped(z_NV, scale.length)
