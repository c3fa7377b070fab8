"""Class means as they most likely were before noise was added to them for privacy.

The noise in a class's mean depends on how many clients hold the class and how many samples they
have, which nobody tells a client. But noise goes in all directions alike, while classes differ in
those directions in which samples differ. So a client looks at the certified means along the
principal directions of its own samples:

- Where its samples vary least, what sets a class apart from the others is taken for noise.
- Where they vary most, what is left besides noise is how far apart classes are.

Each mean is then drawn toward the centre of all, in every direction as far as its noise calls for
(empirical Bayes; James and Stein, 1961). It uses certified means and the client's own samples, so
it costs no privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The share of directions in which differences of classes are taken for noise. Like the flatness, it
# was chosen on samples held back from training, of few seeds: one of CIFAR-10, two of MNIST and two
# of mnist5k. `bench/private_map.py --choose` repeats such a choice.
_QUIET = 0.75
# Classes differ in proportion to their samples' variance, of which this share is the average over
# all directions: few samples of few classes do not show every direction in which classes differ.
_FLATNESS = 0.3
_ALMOST_0 = 1e-9


def denoised(means_CV: Tensor, covariance_VV: Tensor) -> Tensor:
    """Return the means of classes less their noise, given the covariance of the client's samples.

    Of one class or value, or without any variance, nothing can be told: means stay as they are.
    """
    variance_V, directions_VV = principal_directions(covariance_VV)
    if min(means_CV.shape) < 2 or not variance_V.sum() > 0:
        return means_CV
    variance_V = variance_V.clamp_min(0).lerp(variance_V.mean(), _FLATNESS)
    quiet = int(_QUIET * len(variance_V))
    along_CV = means_CV @ directions_VV
    # The median, because a class of few samples may be nothing but noise, and a large one. Squares
    # about the middle of C classes are too small by about 1/C: all of them, so that it cancels out.
    apart_CV = along_CV - along_CV.quantile(0.5, dim=0)
    noise_C1 = apart_CV[:, :quiet].square().mean(1, keepdim=True).clamp_min(_ALMOST_0)
    # From here on, classes with less noise have a larger say.
    weight_C1 = 1 / noise_C1 / (1 / noise_C1).sum()
    centre_V = (weight_C1 * along_CV).sum(0)
    apart_CV = along_CV - centre_V
    signal_CV = apart_CV.square() - noise_C1
    ratio = (weight_C1 * signal_CV)[:, quiet:].sum(0).mean() / variance_V[quiet:].mean()
    expected_V = variance_V * ratio.clamp_min(_ALMOST_0)
    kept_CV = expected_V / (expected_V + noise_C1)
    return (centre_V + kept_CV * apart_CV) @ directions_VV.mT


def principal_directions(covariance_VV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variances along the principal directions, least first, and the directions."""
    values_V, vectors_VV = torch.linalg.eigh(covariance_VV)
    return values_V, vectors_VV
