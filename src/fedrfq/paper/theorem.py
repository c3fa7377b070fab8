"""Theorem 1 with numbers in it: its constants from a run that was measured, and its right side for each of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrfq.paper.descent import MeasuredRound

FORMS = {"printed": False, "corrected": True}  # of the bound, and whether it is corrected


@dataclass(frozen=True)
class Constants:
    """What the assumptions bound, as large as it was anywhere in the run."""

    eta: float
    lam: float
    iterations: int  # E
    smoothness: float  # L_a along the run
    curvature: float  # … by the Hessian
    variance: float  # σ²
    norm: float  # G
    steepness: float  # L₂
    pooled: float  # L₂′, measured
    printed: float  # … k̂² − 1
    epsilon: float

    @staticmethod
    def of(
        rounds: Sequence[MeasuredRound],
        eta: float,
        lam: float,
        iterations: int,
        pooled: float,
        kernel: int,
    ) -> Constants:
        def most(name: str) -> float:
            return max(float(getattr(measured, name)) for measured in rounds)

        return Constants(
            eta=eta,
            lam=lam,
            iterations=iterations,
            smoothness=most("smoothness"),
            curvature=most("curvature"),
            variance=most("variance"),
            norm=most("norm"),
            steepness=most("steepness"),
            pooled=pooled,
            printed=float(kernel**2 - 1),
            epsilon=most("filtered"),
        )

    @property
    def smooth(self) -> float:
        """L_a: the larger of what it was found to be."""
        return max(self.smoothness, self.curvature)


@dataclass(frozen=True)
class Terms:
    """The right side, term by term, for one round of one client: printed, or `corrected` (2λε for 2ε, L₂′ as measured)."""

    descent: float  # −(η − L_a η² / 2) Σ ‖∇ℓ‖²
    noise: float  # L_a E η² σ² / 2
    exchange: float  # λ L₂ L₂′ η E G
    gap: float  # 2ε

    @property
    def change(self) -> float:
        """What the loss may change by, at most."""
        return self.descent + self.noise + self.exchange + self.gap


def terms(measured: MeasuredRound, c: Constants, corrected: bool) -> Terms:
    return Terms(
        descent=-(c.eta - c.smooth * c.eta**2 / 2) * measured.descent,
        noise=c.smooth * c.iterations * c.eta**2 * c.variance / 2,
        exchange=c.lam
        * c.steepness
        * (c.pooled if corrected else c.printed)
        * c.eta
        * c.iterations
        * c.norm,
        gap=2 * (c.lam if corrected else 1) * c.epsilon,
    )


def largest_lam(measured: MeasuredRound, c: Constants, corrected: bool) -> float:
    """With a larger λ no step, however small, is promised to lower the loss: the terms linear in η, with no gap at all."""
    return measured.descent / (
        c.steepness * (c.pooled if corrected else c.printed) * c.iterations * c.norm
    )


def s8_holds(measured: MeasuredRound, c: Constants, corrected: bool) -> bool:
    """Step s8 of the proof, with what was measured on both sides: global prototypes move no farther (times λ) than they would
    unfiltered (times λ) and the filter's gap does, times λ only if corrected."""
    gap = (c.lam if corrected else 1) * measured.filter_moved
    return c.lam * measured.globals_moved <= c.lam * measured.unfiltered_moved + gap + 1e-9


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting's measured rounds, and the constants they give."""

    constants: Constants
    rounds: Sequence[MeasuredRound]

    def changes(self, corrected: bool) -> list[float]:
        """What the bound allows the loss to change by, for each round of each client."""
        return [terms(measured, self.constants, corrected).change for measured in self.rounds]

    def slacks(self, corrected: bool) -> list[float]:
        """By how much the bound lies above the loss."""
        pairs = zip(self.rounds, self.changes(corrected), strict=True)
        return [measured.loss_start + change - measured.loss_after for measured, change in pairs]
