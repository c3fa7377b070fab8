"""What noise costs: ε for a δ, over all uploads of a client, by Google's dp-accounting.

Uploads with Gaussian noise of the multipliers z₁, z₂, … cost together exactly what one with the
multiplier z does, where 1/z² = 1/z₁² + 1/z₂² + …, even if each was chosen after the ones before it.

Our noise is the *discrete* Gaussian, for which that is not exactly so. Compare it with a continuous
Gaussian that is rounded to whole numbers: rounding only forgets, so for that one the continuous
figure holds. For a vector y of d values, the logarithms of the two probabilities differ by at most
τ = d/8σ² + |y|²/24σ⁴. By definition δ(ε) is the mean of (1 − exp(ε − L))⁺ over y, where L is the
privacy loss. Going over to the other distribution changes the mean by a factor of e^τ, and L by 2τ.
With σ² ≥ 2²⁴·V, which `Privacy.scale` sees to, 2τ is below `_SLACK` but for vectors of a
probability below `_TAIL`. So each upload may cost that much more, and it is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedrfq.errors import UserError

# What an upload costs more than with continuous noise: in ε, and in the share of δ that is lost.
_SLACK = 1e-5
_TAIL = 1e-11
# How exactly ε is computed.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class NoisySteps:
    """Steps of DP-SGD: how many, the chance of a sample to be in one, and the noise."""

    steps: int
    rate: float
    noise: float


def epsilon(
    multipliers: Sequence[float], delta: float, training: NoisySteps | None = None
) -> float:
    """Return the ε of uploads with noise of these multipliers, and of training."""
    if training is not None and training.steps:
        return _with_training(multipliers, delta, training)
    if not multipliers:
        return 0.0
    uploads = len(multipliers)
    left = (delta - uploads * _TAIL) * math.exp(-uploads * _SLACK)
    if left <= 0:
        return math.inf
    together = _together(multipliers)
    continuous: float = _library().get_epsilon_gaussian(together, left, tol=_TOLERANCE)
    return continuous + uploads * _SLACK


def _together(multipliers: Sequence[float]) -> float:
    """Return the multiplier of one upload that costs what these do together."""
    return 1 / math.sqrt(math.fsum(multiplier**-2 for multiplier in multipliers))


def _with_training(multipliers: Sequence[float], delta: float, training: NoisySteps) -> float:
    """Return the ε of all together, by the privacy loss distribution, which is rounded up.

    Rounded noise costs what continuous noise does, so steps have no slack.
    """
    library = _library()
    from dp_accounting import pld

    uploads = len(multipliers)
    left = (delta - uploads * _TAIL) * math.exp(-uploads * _SLACK)
    if left <= 0:
        return math.inf
    accountant = pld.PLDAccountant()
    step = library.PoissonSampledDpEvent(training.rate, library.GaussianDpEvent(training.noise))
    accountant.compose(step, training.steps)
    if multipliers:
        # As one: each by itself would take the accountant half a second.
        accountant.compose(library.GaussianDpEvent(_together(multipliers)))
    spent: float = accountant.get_epsilon(left)
    return spent + uploads * _SLACK


def noise_for(epsilon_: float, uploads: int, delta: float) -> float:
    """Return the least multiplier, in steps of 0.001, with which so many uploads cost no more."""
    continuous: float = _library().get_sigma_gaussian(epsilon_, delta) * math.sqrt(uploads)
    thousandths = max(math.floor(continuous * 1000), 1)
    # What the discrete noise costs more is less than a step or two.
    while epsilon([thousandths / 1000] * uploads, delta) > epsilon_:
        thousandths += 1
    return thousandths / 1000


def check_installed() -> None:
    """Raise a UserError unless ε can be computed here."""
    _library()


def _library() -> Any:
    """Return dp-accounting's module; it is imported late, because few need it and it is large."""
    try:
        import dp_accounting
    except ImportError as error:
        raise UserError(
            "ε is computed by dp-accounting, which is not installed: pip install 'fedrfq[privacy]'"
        ) from error
    return dp_accounting
