"""What a setting costs before anything is run, or what noise a cost asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from fedrfq.errors import UserError
from fedrfq.privacy.accountant import epsilon as spent
from fedrfq.privacy.accountant import noise_for
from fedrfq.privacy.settings import Privacy

_MOST_UPLOADS = 100_000
# Neither ends of this range mean anything.
_EPSILONS = (0.001, 100.0)


@dataclass(frozen=True)
class Cost:
    """The ε of so many uploads with this noise, and the largest AUC of an attacker."""

    noise: float
    uploads: int
    delta: float
    epsilon: float
    auc: float


def cost(noise: float | None, epsilon: float | None, uploads: int, delta: float) -> Cost:
    """Return the cost of a noise, or of the least noise that costs no more than an ε."""
    if (noise is None) == (epsilon is None):
        raise UserError("give either --noise, to be told its ε, or --epsilon, to be told its noise")
    if not 1 <= uploads <= _MOST_UPLOADS:
        raise UserError(f"--uploads must be 1 to {_MOST_UPLOADS}, not {uploads}")
    if epsilon is not None:
        low, high = _EPSILONS
        if not low <= epsilon <= high:
            raise UserError(f"--epsilon must be {low:g} to {high:g}, not {epsilon:g}")
        # δ is checked first, with a noise that is right.
        noise = noise_for(epsilon, uploads, Privacy(noise=1.0, delta=delta).delta)
    assert noise is not None
    if not Privacy(noise=noise, delta=delta).used:
        raise UserError("--noise 0 adds none, and without noise there is no ε")
    return Cost(noise, uploads, delta, spent([noise] * uploads, delta), auc(noise, uploads))


def auc(noise: float, uploads: int = 1) -> float:
    """Return the largest area under the ROC curve of any guess whether a sample was there."""
    # The best test is of two normal distributions with the distance √uploads / noise.
    return NormalDist().cdf(math.sqrt(uploads / 2) / noise)
