"""Theorem 1 with numbers: its constants from a measured run, and its right side for each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrfq.paper.descent import MeasuredRound

FORMS = {"printed": False, "corrected": True}  # the forms of the bound: is it corrected?
_ROUNDING = 1e-9  # of sums in float64 that are equal by the proof


@dataclass(frozen=True)
class Constants:
    """The constants of the theorem's assumptions, each the largest value found in the run."""

    eta: float
    lam: float
    iterations: int  # E
    smoothness: float  # L_a along the run
    curvature: float  # L_a by the Hessian
    variance: float  # σ²
    norm: float  # G
    steepness: float  # L₂
    pooled: float  # L₂′, measured
    printed: float  # L₂′, as the paper prints it: k̂² − 1
    epsilon: float

    @staticmethod
    def of(
        rounds: Sequence[MeasuredRound],
        *,
        eta: float,
        lam: float,
        iterations: int,
        pooled: float,
        kernel: int,
    ) -> Constants:
        """Take the constants from the measured rounds and from the run's settings."""

        def largest(name: str) -> float:
            return max(float(getattr(measured, name)) for measured in rounds)

        return Constants(
            eta=eta,
            lam=lam,
            iterations=iterations,
            smoothness=largest("smoothness"),
            curvature=largest("curvature"),
            variance=largest("variance"),
            norm=largest("norm"),
            steepness=largest("steepness"),
            pooled=pooled,
            printed=float(kernel**2 - 1),
            epsilon=largest("filtered"),
        )

    @property
    def smooth(self) -> float:
        """L_a: the larger of its two estimates."""
        return max(self.smoothness, self.curvature)

    def pooling(self, corrected: bool) -> float:
        """Return L₂′: measured in the corrected form, k̂² − 1 in the printed one."""
        if corrected:
            return self.pooled
        return self.printed

    def gap_weight(self, corrected: bool) -> float:
        """Return the factor of ε: the paper's proof loses a λ, which the corrected form keeps."""
        if corrected:
            return self.lam
        return 1


@dataclass(frozen=True)
class Terms:
    """The terms of the right side for one round of one client.

    The corrected form has 2λε in place of 2ε, and L₂′ as it was measured.
    """

    descent: float  # −(η − L_a η² / 2) Σ ‖∇ℓ‖²
    noise: float  # L_a E η² σ² / 2
    exchange: float  # λ L₂ L₂′ η E G
    gap: float  # 2ε

    @property
    def change(self) -> float:
        """The most that the loss may change by."""
        return self.descent + self.noise + self.exchange + self.gap


def terms(measured: MeasuredRound, c: Constants, corrected: bool) -> Terms:
    """Return the terms of the bound for a measured round."""
    pooling = c.pooling(corrected)
    return Terms(
        descent=-(c.eta - c.smooth * c.eta**2 / 2) * measured.descent,
        noise=c.smooth * c.iterations * c.eta**2 * c.variance / 2,
        exchange=c.lam * c.steepness * pooling * c.eta * c.iterations * c.norm,
        gap=2 * c.gap_weight(corrected) * c.epsilon,
    )


def largest_lam(measured: MeasuredRound, c: Constants, corrected: bool) -> float:
    """Return the λ above which no step, however small, is promised to lower the loss.

    Only the terms linear in η count then, here without any gap: descent against exchange.
    """
    return measured.descent / (c.steepness * c.pooling(corrected) * c.iterations * c.norm)


def s8_holds(measured: MeasuredRound, c: Constants, corrected: bool) -> bool:
    """Return whether step s8 of the proof holds for the measured round.

    It says that the global prototypes move no farther, times λ, than they would unfiltered, times
    λ, plus what the filter's gap moves by, times λ only in the corrected form.
    """
    gap = c.gap_weight(corrected) * measured.filter_moved
    return c.lam * measured.globals_moved <= c.lam * measured.unfiltered_moved + gap + _ROUNDING


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting's measured rounds, and the constants taken from them."""

    constants: Constants
    rounds: Sequence[MeasuredRound]

    def changes(self, corrected: bool) -> list[float]:
        """Return what the bound allows the loss to change by, for each round of each client."""
        return [terms(measured, self.constants, corrected).change for measured in self.rounds]

    def slacks(self, corrected: bool) -> list[float]:
        """Return by how much the bound lies above the loss, for each round of each client."""
        pairs = zip(self.rounds, self.changes(corrected), strict=True)
        return [measured.loss_start + change - measured.loss_after for measured, change in pairs]
