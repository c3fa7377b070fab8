"""One prediction from a client's own model and the public classifier.

The public classifier says how likely a sample is of a class that the client holds. If so, the
client's own head and the public classifier decide together which: their probabilities among the
held classes are multiplied, the head's to the power of 1/4, because a head that has fitted its few
samples is too sure of itself. If not, the public classifier decides among the others. Where nothing
is known of a held class on the public map, the own head speaks for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The log-probability of what cannot be; unlike −∞ it gives no NaN.
_NEVER = -1e9
# Classes of which nothing is known on the map lie below it, and all others far above.
_NOT_ON_MAP = -1e6
# The weight of the head's word: on samples held back of mnist5k 1/4 is level with the map alone on
# all classes and near the best on held ones; 2 is worse by 0.3 points
# (`results/public/choices.json`).
_HEAD_WEIGHT = 0.25
OWN = "own model"
PUBLIC = "public map"
UNKNOWN = -1


def combined(own_NJ: Tensor, public_NJ: Tensor, held_J: Tensor) -> Tensor:
    """Return log-probabilities of all classes, from the head's logits and the public ones.

    All may have more dimensions in front, if they are broadcast to each other.
    """
    public_NJ = public_NJ.to(own_NJ)
    own_NJ = _among(own_NJ, held_J)
    # Among the classes held, both have a say: multiplied, the surer one wins.
    within_NJ = _among(_HEAD_WEIGHT * own_NJ + _among(public_NJ, held_J), held_J)
    held_N1 = public_NJ.masked_fill(~held_J, _NEVER).logsumexp(-1, keepdim=True)
    both_NJ = torch.where(held_J, held_N1 + within_NJ, public_NJ)
    # The head's word on held classes that the map does not know; what is left is for both.
    alone_NJ = held_J & (public_NJ < _NOT_ON_MAP)
    alone_N1 = own_NJ.masked_fill(~alone_NJ, _NEVER).logsumexp(-1, keepdim=True)
    left_N1 = torch.log1p(-alone_N1.exp().clamp_max(1)).clamp_min(_NEVER)
    return torch.where(alone_NJ, own_NJ, both_NJ + left_N1).log_softmax(-1)


def answers(chance_NJ: Tensor, threshold: float) -> Tensor:
    """Return the most likely class, or UNKNOWN where its probability is below the threshold."""
    best_N, guess_N = chance_NJ.max(-1)
    return guess_N.where(best_N.exp() >= threshold, UNKNOWN)


def _among(chance_NJ: Tensor, allowed_J: Tensor) -> Tensor:
    """Return the log-probabilities among some classes."""
    return chance_NJ.masked_fill(~allowed_J, _NEVER).log_softmax(-1)
