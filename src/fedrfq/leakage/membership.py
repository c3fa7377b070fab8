"""Whether a sample was among a client's: what an attacker wins from uploads with shadows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.random import Generator
from torch import Tensor

from fedrfq.leakage.likelihood_ratio import inverse_covariance, log_ratios
from fedrfq.leakage.roc import Floats, Roc, Scored
from fedrfq.leakage.shadows import Seen
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Ints, Precision
from fedrfq.prototypes.pooling import Pool

# Bits at which uploads are attacked besides those that were sent.
_COARSER_BITS = (8, 4)
# An upload as the run recorded it, by client and class.
Recorded = dict[tuple[int, int], Ints]


class Form(Protocol):
    """What becomes of features on their way into an upload."""

    def uploads(self, own_FND: Tensor) -> Floats:
        """Return each federation's upload of these samples of a class."""
        ...

    def features(self, targets_FTD: Tensor) -> Floats:
        """Return what each target adds to a mean."""
        ...


@dataclass(frozen=True)
class UploadForm:
    """Uploads without noise: features are pooled, averaged, and rounded to the message's grid."""

    pool: Pool
    precision: Precision

    # The noise in a class's sum, and the AUC that no attacker exceeds.
    deviation: ClassVar[float] = 0.0
    most: ClassVar[float] = 1.0

    def uploads(self, own_FND: Tensor) -> Floats:
        """Return each federation's upload: the mean of its pooled samples on the message's grid."""
        means_FV = self.pool(own_FND).double().mean(1)
        quantised_F1V, _, _ = quantise(means_FV[:, None], self.precision)
        return quantised_F1V[:, 0] / 2.0**FRACTION_BITS

    def features(self, targets_FTD: Tensor) -> Floats:
        """Return what each target adds to a mean."""
        pooled: Floats = self.pool(targets_FTD).double().numpy()
        return pooled


@dataclass(frozen=True)
class Success:
    """What an attack wins from the run's own uploads, and from those of all federations alike."""

    run: Roc
    alike: Roc


def attacked(
    seen: Iterable[Seen],
    form: Form,
    recorded: Recorded,
    rng: Generator,
    weigh_VV: Floats | None = None,
) -> Success:
    """Ask about every target; each federation is the victim once, and the others its shadows.

    Where the run `recorded` an upload, that one is attacked, and not what was computed again.
    `weigh_VV` is the inverse of an upload's covariance where that is known better than by shadows.
    """
    run = []
    alike = []
    for one in seen:
        uploads_FV = form.uploads(one.own_FND)
        sent_V = recorded.get((one.asked.client, one.asked.label))
        if sent_V is not None:
            uploads_FV[0] = sent_V / 2.0**FRACTION_BITS
        features_FTV = form.features(one.targets_FTD)
        weigh = weigh_VV
        if weigh is None:
            weigh = inverse_covariance(_covariance(uploads_FV, features_FTV, one.asked.members))
        ratios_FT = log_ratios(uploads_FV, one.asked.member_FT, features_FTV, weigh)
        scored = _scored(one, ratios_FT)
        run.append(scored[0])
        alike += scored
    return Success(Scored.joined(run).roc(rng), Scored.joined(alike).roc(rng))


def _scored(one: Seen, ratios_FT: Floats) -> list[Scored]:
    """Return each federation's scores; targets of one client belong together."""
    group_T = np.full(ratios_FT.shape[1], one.asked.client)
    pairs = zip(ratios_FT, one.asked.member_FT, strict=True)
    return [Scored(ratio_T, member_T, group_T) for ratio_T, member_T in pairs]


def _covariance(uploads_FV: Floats, features_FTV: Floats, members: int) -> Floats:
    """Return how an upload varies: from model to model, and with the samples behind its mean."""
    centred_FTV = features_FTV - features_FTV.mean(1, keepdims=True)
    rows_RV = centred_FTV.reshape(-1, centred_FTV.shape[2])
    of_samples = rows_RV.T @ rows_RV / len(rows_RV) / members
    of_models: Floats = np.atleast_2d(np.cov(uploads_FV.T))
    covariance_VV: Floats = of_samples + of_models
    return covariance_VV


def forms(pool: Pool, precision: Precision) -> list[UploadForm]:
    """Return the form that was sent, the same unpooled, and the same with fewer bits."""
    found = [UploadForm(pool, precision)]
    if pool.name != "none":
        found.append(UploadForm(Pool("none"), precision))
    coarser = [Precision(few) for few in _COARSER_BITS if few < precision.bits]
    return found + [UploadForm(pool, few) for few in coarser]
