"""What is measured: accuracy, prototype failure, silhouette. Every function takes plain arrays and returns numbers."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NEAR_ZERO = 1e-2  # healthy pooled prototypes have values around 0.5
_ALIKE = 0.05  # of the vectors' size: the spread stays above a tenth of it while a client learns, and is below when it cannot
_SILHOUETTE_SAMPLES = 5000  # the measure compares every pair: more samples are thinned to these


def accuracies(guess_KN: Tensor, y_KN: Tensor, weight_KN: Tensor) -> NDArray[np.float64]:
    """Each client's share of right guesses, in percent."""
    right_K = ((guess_KN == y_KN).float() * weight_KN).sum(1)
    return (100 * right_K.double() / weight_KN.sum(1)).cpu().numpy()


def running_std(accuracy_K: NDArray[np.float64], counts_K: NDArray[np.int64]) -> float:
    """FedProto's printed "std": its counters are never reset, so it is that of running averages over the clients."""
    right = np.cumsum(accuracy_K * counts_K)
    return float(np.std(right / np.cumsum(counts_K)))


def distances(p_KNV: Tensor, globals_JV: Tensor) -> Tensor:
    """L2 distance of every prototype to every global prototype: K × N × J."""
    return torch.cdist(p_KNV, globals_JV.expand(p_KNV.shape[0], -1, -1), compute_mode="donot_use_mm_for_euclid_dist")


def nearest(distance_KNJ: Tensor, allowed_KJ: Tensor) -> Tensor:
    """The class of the nearest global prototype among those allowed to each client; −1 where none is allowed."""
    guess_KN = distance_KNJ.masked_fill(~allowed_KJ[:, None], float("inf")).argmin(-1)
    return guess_KN.where(allowed_KJ.any(1, keepdim=True), -1)


def prototype_failure(distance_NJ: Tensor, y_N: Tensor, present_J: Tensor) -> float:
    """The paper's prototype failure as a share: of all pairs of a prototype of class j and one of another class, how many
    have the first one farther from the global prototype of j than the second (L2(Z₁,H₁) > L2(Z₂,H₁))."""
    own_JN = (y_N == torch.arange(len(present_J), device=y_N.device)[:, None]) & present_J[:, None]
    distance_JN = distance_NJ.T.contiguous()
    others_JN = distance_JN.masked_fill(own_JN, float("inf")).sort(1).values
    nearer_JN = torch.searchsorted(others_JN, distance_JN)
    failed = (nearer_JN * own_JN).sum().item()
    held_J = own_JN.sum(1)
    pairs = (held_J * (len(y_N) - held_J)).sum().item()
    return float(failed / pairs) if pairs else float("nan")


def collapsed(c_KND: Tensor, p_KNV: Tensor, weight_KN: Tensor, classes_K: Tensor) -> Tensor:
    """Which clients' training collapsed: their pooled prototypes are all near 0, or, though they hold several classes,
    the feature vectors of all their samples are alike."""
    weight_KN1 = weight_KN[..., None]
    mean_K1D = (c_KND * weight_KN1).sum(1, keepdim=True) / weight_KN1.sum(1, keepdim=True)
    spread_K = ((c_KND - mean_K1D).square() * weight_KN1).sum((1, 2)).sqrt()
    size_K = (c_KND.square() * weight_KN1).sum((1, 2)).sqrt()
    largest_K = (p_KNV.abs() * weight_KN1).amax((1, 2))
    return (largest_K < _NEAR_ZERO) | ((spread_K < _ALIKE * size_K) & (classes_K > 1))


def silhouette(vectors_NV: NDArray[np.float32], y_N: NDArray[np.int64], seed: int) -> float:
    """Mean silhouette coefficient of the vectors, by class: 1 for tight and far apart, below 0 for mixed up."""
    from sklearn.metrics import silhouette_score

    if not 1 < len(np.unique(y_N)) < len(y_N):
        return float("nan")
    size = min(_SILHOUETTE_SAMPLES, len(y_N))
    return float(silhouette_score(vectors_NV, y_N, sample_size=size, random_state=seed % 2**32))
