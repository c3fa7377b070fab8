"""What a client uploads: the mean prototype of each class, as fixed-point integers."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.prototypes.fixed_point import FRACTION_BITS, FULL_PRECISION, Ints, Precision


def class_means(
    p_KNV: Tensor, y_KN: Tensor, weight_KN: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return P̄, the inputs of Eq. 9, and the number of samples behind each.

    P̄ is the mean pooled prototype of each class, for each client; 0 for classes it does not hold.
    """
    member_KNJ = torch.nn.functional.one_hot(y_KN, classes).to(p_KNV.dtype) * weight_KN[..., None]
    counts_KJ = member_KNJ.sum(1)
    sums_KJV = torch.bmm(member_KNJ.mT, p_KNV)
    return sums_KJV / counts_KJ.clamp_min(1)[..., None], counts_KJ.round().long()


def quantise(values_KJV: Tensor, precision: Precision = FULL_PRECISION) -> tuple[Ints, Ints, Ints]:
    """Return the nearest integers of the precision, cut to its range.

    Also return, for each client, how many values were cut, and how many were not numbers.
    """
    finite_KJV = torch.isfinite(values_KJV)
    scaled = torch.round(values_KJV.double() * 2.0**FRACTION_BITS / precision.step)
    cut = scaled.nan_to_num().clamp(-precision.most, precision.most)
    saturated_KJV = (cut != scaled) & finite_KJV
    return (
        _numpy(cut * precision.step),
        _numpy(saturated_KJV.sum((1, 2))),
        _numpy((~finite_KJV).sum((1, 2))),
    )


def _numpy(tensor: Tensor) -> Ints:
    array: Ints = tensor.long().cpu().numpy()
    return array
