"""A classifier of all classes, made from the federation's statistics on a public map.

By the nearest mean, or by linear discriminant analysis (LDA): classes are normal distributions
around their means with one covariance, which is the federation's where second moments were
exchanged and otherwise the client's own. It is shrunk toward a multiple of the identity, because it
is estimated from fewer samples than it has values: with a shrinkage of 1, LDA is the nearest mean.
Where the means have noise for privacy, it is taken out of them first as far as it can be told.

How sure the classifier is (its temperature) is fitted on the client's own training samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrfq.learning.public.denoised_means import denoised
from fedrfq.learning.public.temperature import temperature, unseen
from fedrfq.models.public_maps import PublicMap
from fedrfq.prototypes.class_statistics import class_rows, covariance, unpacked
from fedrfq.prototypes.fixed_point import Globals

# Chosen on samples held back from training: the federation's covariance is of thousands of samples,
# a client's own is of tens or hundreds.
_FEDERATION_SHRINKAGE = 0.2
_OWN_SHRINKAGE = 0.8
# The log-probability of a class of which nothing is known; unlike −∞ it gives no NaN.
_ABSENT = -1e9


@dataclass(frozen=True)
class PublicClassifier:
    """Linear scores of all classes, whose softmax are their probabilities."""

    weight_VJ: Tensor
    bias_J: Tensor
    temperature: float

    def log_probabilities(self, z_NV: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, for vectors on the map."""
        scores_NJ = _scores(self.weight_VJ, self.bias_J, z_NV)
        return (scores_NJ / self.temperature).log_softmax(-1)


def classifier(
    map_: PublicMap, known: CertifiedStatistics, z_NV: Tensor, y_N: Tensor
) -> PublicClassifier:
    """Return a client's classifier, given what was certified and its own training samples."""
    means_JV = _means(known, z_NV, y_N)
    covariance_VV, own = _covariance(map_, known, z_NV, y_N)
    weight_VJ, bias_J = _discriminant(means_JV, covariance_VV, known.present_J)
    scores_NJ = _scores(weight_VJ, bias_J, z_NV)
    if own:
        gained_NJ = unseen(covariance_VV, own, means_JV, z_NV, y_N)
        scores_NJ += gained_NJ * known.present_J
    return PublicClassifier(weight_VJ, bias_J, temperature(scores_NJ, y_N, known.present_J))


@dataclass(frozen=True)
class CertifiedStatistics:
    """What was certified: class means, which classes have one, and the covariance, if it was.

    `noisy` says whether clients added noise to the means.
    """

    means_JV: Tensor
    present_J: Tensor
    covariance_VV: Tensor | None
    noisy: bool = False

    @staticmethod
    def of(
        known: Globals, classes: int, device: torch.device, noisy: bool = False
    ) -> CertifiedStatistics:
        """Return the statistics in these rows: those of the classes, then the second moments."""
        rows_RV = torch.from_numpy(known.floats()).to(device, torch.float64)
        present_R = torch.from_numpy(known.present_J).to(device)
        covariance_VV = None
        if len(rows_RV) > classes and bool(present_R[classes:].all()):
            covariance_VV = _nearest_covariance(unpacked(rows_RV[classes:]))
        return CertifiedStatistics(rows_RV[:classes], present_R[:classes], covariance_VV, noisy)


def _discriminant(
    means_JV: Tensor, covariance_VV: Tensor, present_J: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weights and biases of linear scores; of unknown classes nothing is expected."""
    weight_VJ = torch.linalg.solve(covariance_VV, means_JV.mT)
    bias_J = -0.5 * (means_JV.mT * weight_VJ).sum(0)
    return weight_VJ * present_J, bias_J.where(present_J, _ABSENT)


def _means(known: CertifiedStatistics, z_NV: Tensor, y_N: Tensor) -> Tensor:
    """Return the class means that are expected, given the client's own samples."""
    means_JV = known.means_JV
    if not known.noisy:
        return means_JV
    likely_CV = denoised(means_JV[known.present_J], _own_covariance(known, z_NV, y_N))
    return means_JV.index_put((known.present_J,), likely_CV)


def _scores(weight_VJ: Tensor, bias_J: Tensor, z_NV: Tensor) -> Tensor:
    return z_NV.double() @ weight_VJ + bias_J


def _covariance(
    map_: PublicMap, known: CertifiedStatistics, z_NV: Tensor, y_N: Tensor
) -> tuple[Tensor, float]:
    """Return the covariance of LDA, shrunk so that it can be inverted.

    Return also the weight in it of the client's own covariance.
    """
    values = z_NV.shape[1]
    identity_VV = torch.eye(values, dtype=torch.float64, device=z_NV.device)
    if map_.classifier == "nearest":
        return identity_VV, 0.0
    found_VV = known.covariance_VV
    shrinkage = map_.shrinkage or _FEDERATION_SHRINKAGE
    own = 0.0
    if found_VV is None:
        found_VV = _own_covariance(known, z_NV, y_N)
        shrinkage = map_.shrinkage or _OWN_SHRINKAGE
        own = 1 - shrinkage
    spread = found_VV.diagonal().mean()
    # One sample a class has no spread at all: the nearest mean is left.
    if not spread > 0:
        return identity_VV, 0.0
    return (1 - shrinkage) * found_VV + shrinkage * spread * identity_VV, own


def _own_covariance(known: CertifiedStatistics, z_NV: Tensor, y_N: Tensor) -> Tensor:
    """Return the covariance of the client's samples about the exact means of their classes."""
    _, means_JV = class_rows(z_NV, y_N, len(known.means_JV))
    return covariance(z_NV, y_N, means_JV)


def _nearest_covariance(found_VV: Tensor) -> Tensor:
    """Return the nearest matrix that is a covariance; rounding, or a liar, may have made it none.

    Its negative eigenvalues become 0.
    """
    values_V, vectors_VV = torch.linalg.eigh(found_VV)
    nearest_VV: Tensor = (vectors_VV * values_V.clamp_min(0)) @ vectors_VV.mT
    return nearest_VV
