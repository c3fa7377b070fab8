"""What an experiment, and the members of a federation, agree on about privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from fedrfq.errors import UserError
from fedrfq.files.options import check_ranges, one_of, option
from fedrfq.privacy.discrete_gaussian import MAX_SIGMA
from fedrfq.prototypes.fixed_point import FRACTION_BITS, MAX_COUNT
from fedrfq.prototypes.noise_scale import NoiseScale

UNITS = ("sample", "client")
CLASSES = ("declared", "all")
# The least noise × norm a value: `accountant` needs noise that is wide on the grid.
_LEAST_A_VALUE = 1 / 4
# The largest norm: the squares of a vector's whole numbers must fit 64 bits together.
_MOST_NORM = 2.0**16
# Above it δ is no longer a chance that nobody need reckon with.
_MOST_DELTA = 0.01
_LEAST_NOISE = 0.05
_MOST_NOISE = 1e6


@dataclass(frozen=True)
class Privacy:
    """The noise that every client adds to its statistics on the public map, and what it may cost.

    Without noise nothing is promised, and nothing is as it would not be without this section.
    """

    noise: float = option(
        0.0,
        "Noise's standard deviation, in units of what one sample or client can change; 0 for none",
        f"0, or {_LEAST_NOISE:g} to {_MOST_NOISE:g}",
    )
    # Far below, δ would be no more than what rounding the noise may cost; with a larger one,
    # nothing is promised.
    delta: float = option(
        1e-5,
        "The δ of the guarantee (ε, δ)",
        f"1e-9 to {_MOST_DELTA:g}; below one in the number of a client's samples",
    )
    budget: float = option(
        0.0, "The ε that a client's uploads may cost in all; 0 sets no limit", "0 or more"
    )
    unit: str = option(
        "sample", "What is protected: one sample, or all that a client has", one_of(UNITS)
    )
    samples: int = option(
        0,
        "Most samples of a client that count, with unit = client; others are left out",
        f"0 to {MAX_COUNT}",
    )
    classes: str = option(
        "declared",
        "Classes that a client uploads, with samples or without: those it declared, or all",
        one_of(CLASSES),
    )
    count_share: float = option(
        0.1, "Share of the protection that the numbers of samples take", "above 0, below 1"
    )
    prototype_norm: float = option(
        0.0,
        "Norm that pooled features are clipped to, where prototypes get noise, too; 0: they do not",
        f"0 to {_MOST_NORM:g}",
    )

    def __post_init__(self) -> None:
        check_ranges("privacy", self)
        self._check_prototypes()
        self._check_samples()

    def _check_prototypes(self) -> None:
        if self.prototype_norm and not self.used:
            raise UserError(
                "privacy.prototype_norm says how long features may be that noise is added to: set"
                " privacy.noise, or remove it"
            )

    def _check_samples(self) -> None:
        if self.used and self.unit == "client" and not self.samples:
            raise UserError(
                "privacy.unit = 'client' needs a limit on what a client can change: set"
                " privacy.samples to the most samples of a client that count"
            )
        if self.samples and self.unit != "client":
            raise UserError(
                "privacy.samples limits what a client can change: set privacy.unit = 'client',"
                " or remove it"
            )

    @property
    def used(self) -> bool:
        """Whether any noise is added."""
        return self.noise > 0

    def prototype_scale(self, values: int) -> NoiseScale | None:
        """Return the noise for prototypes of so many values; None if they get none."""
        if not self.prototype_norm:
            return None
        return self.scale(self.prototype_norm, values, "privacy.prototype_norm")

    def scale(self, norm: float, values: int, key: str = "public.norm") -> NoiseScale:
        """Return the noise for features clipped to a norm, which `key` sets, of so many values."""
        if norm > _MOST_NORM:
            raise UserError(
                f"{key} = {norm:g} is too large for privacy.noise: at most {_MOST_NORM:g}"
            )
        if self.noise * norm / math.sqrt(values) < _LEAST_A_VALUE:
            raise UserError(
                f"privacy.noise = {self.noise:g} on features of the norm {norm:g} is too fine for"
                f" the grid: raise {key}, or the noise, until noise × norm / √values is"
                f" {_LEAST_A_VALUE:g} or more"
            )
        length = math.floor(Fraction(norm) * (1 << FRACTION_BITS))
        scale = NoiseScale.of(length, self.noise, self.count_share, max(self.samples, 1))
        if scale.sigma > MAX_SIGMA:
            raise UserError(
                f"privacy.noise = {self.noise:g} with privacy.samples = {self.samples} is more"
                " than 64 bits hold: lower one of them"
            )
        return scale
