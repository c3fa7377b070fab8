"""How sure a client's public classifier is: its temperature, fitted on the client's own samples.

Samples that a covariance was estimated from fit it too well, above all where they are few and it
has many values. So each sample is judged by the covariance of the others (leave one out), which by
the formula of Sherman and Morrison takes no further matrix to be inverted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.prototypes.class_statistics import class_rows

# Temperatures that are tried, from very sure to very unsure.
_TEMPERATURES: tuple[float, ...] = tuple(2.0 ** (step / 4) for step in range(-8, 33))
# How many samples are supposed to be mistaken, besides the client's own. With 1 to 80 samples a
# class, on a map that is mirrored or not, this had the smallest of the largest calibration errors
# on samples held back (`results/public/choices.json`).
_DOUBT = 0.1
_ALMOST_0 = 1e-9


def unseen(
    covariance_VV: Tensor, share: float, means_JV: Tensor, z_NV: Tensor, y_N: Tensor
) -> Tensor:
    """Return what LDA's score of each sample and class gains if the covariance had not seen it.

    `share` is the weight in it of the covariance of all these samples about their classes' means.
    """
    count_J, own_JV = class_rows(z_NV, y_N, len(means_JV))
    count_N = count_J[y_N].double()
    apart_NV = z_NV.double() - own_JV[y_N]
    # Without the sample, the mean of its class is farther from it by n / (n − 1).
    part_N = share / len(y_N) * count_N / (count_N - 1).clamp_min(1)
    along_NV = torch.linalg.solve(covariance_VV, apart_NV.mT).mT
    left_N = (1 - part_N * (apart_NV * along_NV).sum(1)).clamp_min(_ALMOST_0)
    mean_NJ = along_NV @ means_JV.mT
    sample_N1 = (z_NV.double() * along_NV).sum(1, keepdim=True)
    gained_NJ: Tensor = (part_N / left_N)[:, None] * mean_NJ * (sample_N1 - mean_NJ / 2)
    return gained_NJ


def temperature(scores_NJ: Tensor, y_N: Tensor, present_J: Tensor) -> float:
    """Return the temperature under which the client's own samples are most likely.

    `_DOUBT` of a sample is added that looks like the client's and is of another class. Without it,
    three samples that are told apart would make the classifier as sure as can be.
    """
    known_N = present_J[y_N]
    if not known_N.any():
        return 1.0
    y_N1 = y_N[known_N][:, None]
    mistaken = _DOUBT / (len(y_N1) + _DOUBT)
    # A mistaken sample is of each other class with the same probability.
    target_NJ = (present_J * mistaken / max(int(present_J.sum()) - 1, 1)).repeat(len(y_N1), 1)
    target_NJ.scatter_(1, y_N1, 1 - mistaken)
    likelihoods = []
    for tried in _TEMPERATURES:
        chance_NJ = (scores_NJ[known_N] / tried).log_softmax(-1)
        likelihoods.append(float((target_NJ * chance_NJ).sum()))
    return _TEMPERATURES[likelihoods.index(max(likelihoods))]
