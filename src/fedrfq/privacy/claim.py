"""What may be claimed of a client's privacy, given all that it has uploaded.

An ε is claimed only if nothing else that depends on the samples leaves the client. `uncovered`
says what else does; then there is no ε, however much noise there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedrfq.errors import UserError
from fedrfq.privacy.accountant import NoisySteps, epsilon
from fedrfq.privacy.drawn_uploads import DrawnUpload
from fedrfq.privacy.settings import Privacy

MECHANISM = "discrete Gaussian noise on class sums and counts, at the client"
TRAINING = "DP-SGD: rounded Gaussian noise on clipped gradients, which no seed can repeat"


@dataclass(frozen=True)
class PrivacyClaim:
    """The guarantee for one client; without an `epsilon` there is none, and `why` says why."""

    mechanism: str
    noise: float
    delta: float
    unit: str
    uploads: int
    epsilon: float | None
    why: str = ""
    budget: float | None = None
    # Steps of training with noise, and their noise, which is not that of uploads.
    steps: int = 0
    training_noise: float = 0.0

    def table(self) -> dict[str, Any]:
        """Return the claim as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.epsilon is None:
            return f"no ε: {self.why}"
        protects = "any one sample" if self.unit == "sample" else "all samples of the client"
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g}, for {protects}"


def claim(
    privacy: Privacy,
    drawn: Sequence[DrawnUpload],
    uncovered: str = "",
    training: NoisySteps | None = None,
) -> PrivacyClaim:
    """Return what may be claimed after these uploads."""
    why = uncovered or _weaker(privacy, drawn)
    spent = None
    if not why:
        spent = epsilon([upload.noise for upload in drawn], privacy.delta, training)
    mechanisms = [MECHANISM] * privacy.used + [TRAINING] * (training is not None)
    return PrivacyClaim(
        "; ".join(mechanisms),
        privacy.noise,
        privacy.delta,
        privacy.unit,
        len(drawn),
        spent,
        why,
        privacy.budget or None,
        training.steps if training else 0,
        training.noise if training else 0.0,
    )


def planned(
    privacy: Privacy, uploads: int, uncovered: str = "", training: NoisySteps | None = None
) -> str:
    """Say what so many uploads, and training, will cost a client."""
    if uncovered:
        return f"no ε: {uncovered}"
    spent = epsilon([privacy.noise] * uploads, privacy.delta, training)
    text = f"ε = {spent:.4g} at δ = {privacy.delta:g} after {uploads} uploads"
    if training is not None:
        text += f" and {training.steps} steps of DP-SGD"
    if 0 < privacy.budget < spent:
        text += f"; uploads stop before ε = {privacy.budget:g}"
    return f"{text}, per {privacy.unit}"


def loose_delta(delta: float, samples: int) -> str:
    """Return what a δ above one in the number of samples would allow; "" if it is not above."""
    if delta * samples <= 1:
        return ""
    return (
        f"δ = {delta:g} is above one in {samples}, the number of a client's samples, so that even"
        " showing one of them would meet it: lower privacy.delta"
    )


def affordable(privacy: Privacy, drawn: Sequence[DrawnUpload]) -> bool:
    """Return whether the budget pays for one more upload after these."""
    if not privacy.budget:
        return True
    if _weaker(privacy, drawn):
        return False
    multipliers = [upload.noise for upload in drawn]
    return epsilon([*multipliers, privacy.noise], privacy.delta) <= privacy.budget


def check_budget(privacy: Privacy) -> None:
    """Raise a UserError where a budget does not even pay for the first upload."""
    if affordable(privacy, []):
        return
    cost = epsilon([privacy.noise], privacy.delta)
    raise UserError(
        f"privacy.budget = {privacy.budget:g} is below what one upload costs, ε = {cost:.4g}:"
        " raise privacy.noise or the budget (`fedrfq privacy` says what a setting costs)"
    )


def _weaker(privacy: Privacy, drawn: Sequence[DrawnUpload]) -> str:
    """Return why earlier uploads promise less than these settings; "" if they do not."""
    # Protecting all samples of a client protects each of them; the reverse is not true.
    if privacy.unit == "client" and any(upload.unit != "client" for upload in drawn):
        return "earlier uploads protect single samples only, not the client as a whole"
    return ""
