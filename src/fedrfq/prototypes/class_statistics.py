"""Statistics of classes on a public feature map, as the rows of an upload.

Row j is the mean vector of class j. With second moments, further rows hold the covariance of the
client's samples about the means of their classes: the triangle of the symmetric matrix, row after
row, cut into pieces as long as a mean. Every one of these rows counts the client's samples, so the
mean over clients that servers compute, weighted by counts, is the federation's covariance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.prototypes.fixed_point import MAX_COUNT


def moment_rows(values: int) -> int:
    """Return how many rows the triangle of a covariance of so many values takes."""
    return -(-(values * (values + 1) // 2) // values)


def class_rows(z_NV: Tensor, y_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the counts of all classes and their means, which are 0 for classes without samples."""
    member_NJ = torch.nn.functional.one_hot(y_N, classes).double()
    counts_J = member_NJ.sum(0)
    means_JV = member_NJ.mT @ z_NV.double() / counts_J.clamp_min(1)[:, None]
    return counts_J.long(), means_JV


def covariance(z_NV: Tensor, y_N: Tensor, means_JV: Tensor) -> Tensor:
    """Return the covariance of samples about the means of their classes: 0 for no samples."""
    residual_NV = z_NV.double() - means_JV[y_N]
    return residual_NV.mT @ residual_NV / max(len(y_N), 1)


def statistics(z_NV: Tensor, y_N: Tensor, classes: int, moments: bool) -> tuple[Tensor, Tensor]:
    """Return the count and the values of every row of a client's upload."""
    counts_R, values_RV = class_rows(z_NV, y_N, classes)
    if not moments:
        return counts_R, values_RV
    rows_MV = packed(covariance(z_NV, y_N, values_RV))
    # As many as a message can carry at most, as `norm_bound.moment_count` says too.
    samples_M = counts_R.new_full((len(rows_MV),), min(len(y_N), MAX_COUNT))
    return torch.cat([counts_R, samples_M]), torch.cat([values_RV, rows_MV])


def packed(covariance_VV: Tensor) -> Tensor:
    """Return the triangle of a symmetric matrix as rows of V values; the last is filled with 0."""
    values = len(covariance_VV)
    above = torch.triu_indices(values, values, device=covariance_VV.device)
    rows_MV = covariance_VV.new_zeros(moment_rows(values), values)
    rows_MV.view(-1)[: above.shape[1]] = covariance_VV[above[0], above[1]]
    return rows_MV


def unpacked(rows_MV: Tensor) -> Tensor:
    """Return the symmetric matrix that `packed` turned into these rows."""
    values = rows_MV.shape[1]
    above = torch.triu_indices(values, values, device=rows_MV.device)
    covariance_VV = rows_MV.new_zeros(values, values)
    covariance_VV[above[0], above[1]] = rows_MV.flatten()[: above.shape[1]]
    return covariance_VV + covariance_VV.triu(1).mT
