"""Measures of a round: accuracy, recall, calibration, prototype failure, collapse, silhouette.

Every function takes plain arrays and returns numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Healthy pooled prototypes have values around 0.5.
_NEAR_ZERO = 1e-2
# A share of the vectors' size: while a client learns, the spread stays above a tenth of it.
_ALIKE = 0.05
# The silhouette compares every pair: of more samples it takes these many at random.
_SILHOUETTE_SAMPLES = 5000
# Bins of the calibration error: the usual number.
_BINS = 15


def accuracies(guess_KN: Tensor, y_KN: Tensor, weight_KN: Tensor) -> NDArray[np.float64]:
    """Return each client's share of right guesses, in percent."""
    right_K = ((guess_KN == y_KN).float() * weight_KN).sum(1)
    return (100 * right_K.double() / weight_KN.sum(1)).cpu().numpy()


def recalls(right_KN: Tensor, y_KN: Tensor, weight_KN: Tensor, classes: int) -> NDArray[np.float64]:
    """Return each client's share of right guesses in each class, in percent; NaN without samples.

    `right_KN` is 1 where the guess is right and 0 where it is wrong.
    """
    member_KNJ = torch.nn.functional.one_hot(y_KN, classes) * weight_KN[..., None]
    right_KJ = (member_KNJ * right_KN[..., None]).sum(1)
    return (100 * right_KJ.double() / member_KNJ.sum(1)).cpu().numpy()


def calibration_error(
    right_KN: Tensor, confidence_KN: Tensor, weight_KN: Tensor
) -> NDArray[np.float64]:
    """Return each client's expected calibration error (ECE), in percent.

    Samples are put into 15 bins of equal width by the probability of the class that is guessed. A
    bin's gap is between its share of right guesses and its mean probability, and the error is the
    mean of the gaps, weighted by the samples of their bins.
    """
    bin_KN = (confidence_KN * _BINS).ceil().long().clamp(1, _BINS) - 1
    member_KNB = torch.nn.functional.one_hot(bin_KN, _BINS) * weight_KN[..., None]
    gap_KB = (member_KNB * (right_KN - confidence_KN)[..., None]).sum(1).abs()
    return (100 * gap_KB.sum(1).double() / weight_KN.sum(1)).cpu().numpy()


def answered(
    right_KN: Tensor, confidence_KN: Tensor, weight_KN: Tensor, threshold_K: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each client's share of answered samples, and its accuracy on these, in percent.

    Where the probability is below the threshold there is no answer. Both are NaN for a threshold of
    0, and the accuracy also where nothing is answered.
    """
    answered_KN = weight_KN * (confidence_KN >= threshold_K[:, None])
    number_K = answered_KN.sum(1).double().where(threshold_K > 0, torch.nan)
    right_K = (right_KN * answered_KN).sum(1).double()
    share_K = 100 * number_K / weight_KN.sum(1)
    return share_K.cpu().numpy(), (100 * right_K / number_K).cpu().numpy()


def running_std(accuracy_K: NDArray[np.float64], counts_K: NDArray[np.int64]) -> float:
    """Return FedProto's printed "std", that of running averages over the clients.

    Its reference code never resets its counters between clients.
    """
    right = np.cumsum(accuracy_K * counts_K)
    return float(np.std(right / np.cumsum(counts_K)))


def distances(p_KNV: Tensor, globals_JV: Tensor) -> Tensor:
    """Return the L2 distance of every prototype to every global prototype: K × N × J."""
    return torch.cdist(
        p_KNV,
        globals_JV.expand(p_KNV.shape[0], -1, -1),
        compute_mode="donot_use_mm_for_euclid_dist",
    )


def nearest(distance_KNJ: Tensor, allowed_KJ: Tensor) -> Tensor:
    """Return the class of the nearest global prototype among those allowed to each client.

    It is −1 where none is allowed.
    """
    guess_KN = distance_KNJ.masked_fill(~allowed_KJ[:, None], float("inf")).argmin(-1)
    return guess_KN.where(allowed_KJ.any(1, keepdim=True), -1)


def prototype_failure(
    distance_RNJ: Tensor, y_RN: Tensor, real_RN: Tensor, present_RJ: Tensor
) -> NDArray[np.float64]:
    """Return each run's prototype failure, as a share of pairs.

    A pair is a prototype Z₁ of class j and a prototype Z₂ of another class. It fails if Z₁ is
    farther from the global prototype H₁ of j than Z₂ is: L2(Z₁,H₁) > L2(Z₂,H₁).
    """
    classes_J1 = torch.arange(present_RJ.shape[1], device=y_RN.device)[:, None]
    own_RJN = (y_RN[:, None] == classes_J1) & present_RJ[..., None] & real_RN[:, None]
    distance_RJN = distance_RNJ.mT.contiguous()
    # Sorted, so that one search counts how many of the others are nearer than each prototype.
    others_RJN = distance_RJN.masked_fill(own_RJN | ~real_RN[:, None], torch.inf).sort(2).values
    nearer_RJN = torch.searchsorted(others_RJN, distance_RJN)
    failed_R = (nearer_RJN * own_RJN).sum((1, 2)).double()
    held_RJ = own_RJN.sum(2)
    pairs_R = (held_RJ * (real_RN.sum(1, keepdim=True) - held_RJ)).sum(1)
    return (failed_R / pairs_R).cpu().numpy()


def collapsed(c_KND: Tensor, p_KNV: Tensor, weight_KN: Tensor, classes_K: Tensor) -> Tensor:
    """Return which clients' training collapsed.

    Their pooled prototypes are all near 0, or the feature vectors of all their samples are alike
    although they hold several classes.
    """
    weight_KN1 = weight_KN[..., None]
    mean_K1D = (c_KND * weight_KN1).sum(1, keepdim=True) / weight_KN1.sum(1, keepdim=True)
    spread_K = ((c_KND - mean_K1D).square() * weight_KN1).sum((1, 2)).sqrt()
    size_K = (c_KND.square() * weight_KN1).sum((1, 2)).sqrt()
    largest_K = (p_KNV.abs() * weight_KN1).amax((1, 2))
    return (largest_K < _NEAR_ZERO) | ((spread_K < _ALIKE * size_K) & (classes_K > 1))


def silhouette(vectors_NV: Tensor, y_N: Tensor, seed: int) -> float:
    """Return the mean silhouette coefficient of the vectors, by class.

    It is 1 for classes that are tight and far apart, below 0 for classes that are mixed up.
    """
    if len(y_N) > _SILHOUETTE_SAMPLES:
        chosen = np.random.default_rng(seed).permutation(len(y_N))[:_SILHOUETTE_SAMPLES]
        vectors_NV = vectors_NV[chosen]
        y_N = y_N[chosen]
    classes, y_N = y_N.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    if not 1 < len(classes) < len(y_N):
        return float("nan")
    member_NJ = torch.nn.functional.one_hot(y_N).double()
    distance_NN = torch.cdist(vectors_NV, vectors_NV, compute_mode="donot_use_mm_for_euclid_dist")
    sums_NJ = distance_NN.double() @ member_NJ
    size_J = member_NJ.sum(0)
    own_N = sums_NJ.gather(1, y_N[:, None])[:, 0]
    others_N = size_J[y_N] - 1
    within_N = own_N / others_N.clamp_min(1)
    nearest_N = (sums_NJ / size_J).masked_fill(member_NJ.bool(), torch.inf).amin(1)
    silhouette_N = (nearest_N - within_N) / torch.maximum(nearest_N, within_N)
    # A lone sample of its class counts 0, as in scikit-learn.
    return float(silhouette_N.nan_to_num(0).where(others_N > 0, 0).mean())
