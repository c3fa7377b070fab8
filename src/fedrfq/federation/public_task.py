"""What a federation exchanges on a public feature map: a frozen network that everybody has.

In some rounds clients upload, instead of prototypes, statistics of their classes on it. The first
rows of such an upload are the means of the classes, as many as the federation has. Further rows may
hold second moments: a packed triangle, cut into rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from fedrfq.errors import UserError
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.exchange_rounds import exchange_due
from fedrfq.prototypes.fixed_point import MAX_VALUES, Globals, Precision
from fedrfq.prototypes.noise_scale import NoiseScale
from fedrfq.prototypes.norm_bound import NormBound

# The number of rows, like that of values, has 16 bits in a message.
MAX_ROWS = MAX_VALUES
# The most values of all rows together: arrays of this size are made before the first upload comes.
MAX_ALL_VALUES = 1 << 24
# The largest norm: no value in a message is that far from 0.
MAX_NORM = 2.0**20
_NAME = re.compile(r"[a-z0-9:.-]{1,100}")


@dataclass(frozen=True)
class PublicTask:
    """The form of the statistics, and the rounds in which they are exchanged."""

    map: str  # the hash or name of the feature map
    norm: float  # features are clipped to it, so no class mean is longer
    precision: Precision
    classes: int
    moments: int  # rows of second moments; 0 without
    values: int  # of a row
    every: int = 0  # rounds from one exchange to the next; 0: only in round 1
    revocable: bool = False  # whether clients can take their statistics back (`retained.py`)
    privacy: Privacy | None = None  # the noise that clients add; None without

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.map):
            raise UserError(
                f"public.map is {self.map!r}: expected 1 to 100 of a-z, 0-9, colon, dot and hyphen"
            )
        if type(self.norm) is not float or not 0 < self.norm <= MAX_NORM:
            raise UserError(
                f"public.norm must be a number above 0 and at most {MAX_NORM:g}, not {self.norm}"
            )
        for key, least in (("classes", 1), ("moments", 0), ("values", 1), ("every", 0)):
            number = getattr(self, key)
            # By its type, because True is an int too.
            if type(number) is not int or not least <= number <= MAX_ROWS:
                raise UserError(f"public.{key} must be {least} to {MAX_ROWS}, not {number!r}")
        if type(self.revocable) is not bool:
            raise UserError(f"public.revocable must be true or false, not {self.revocable!r}")
        if self.rows > MAX_ROWS or self.rows * self.values > MAX_ALL_VALUES:
            raise UserError(
                f"{self.rows} rows of {self.values} public values: at most {MAX_ROWS} rows, and"
                f" {MAX_ALL_VALUES} values in all, can be exchanged"
            )
        self._check_privacy()

    def _check_privacy(self) -> None:
        if self.privacy is None:
            return
        if not self.privacy.used:
            raise UserError("[privacy] says that there is no noise: remove the section")
        if self.moments:
            raise UserError(
                "public.moments with privacy.noise: one sample changes second moments by far more"
                " than means, and they are sent without noise; set public.moments = 'none'"
            )
        # Raises where the noise does not suit the grid.
        assert self.noise is not None

    @property
    def rows(self) -> int:
        """The number of rows: those of the classes and those of the second moments."""
        return self.classes + self.moments

    @cached_property
    def bound(self) -> NormBound:
        """How long the rows of an upload may be."""
        bound = NormBound.of(
            self.norm, self.classes, self.moments, self.values, self.precision, self.noise
        )
        all_classes = self.privacy is not None and self.privacy.classes == "all"
        return replace(bound, all_classes=all_classes)

    @cached_property
    def noise(self) -> NoiseScale | None:
        """The noise in honest uploads; None without."""
        if self.privacy is None:
            return None
        return self.privacy.scale(self.norm, self.values)

    def due(self, round_: int) -> bool:
        """Return whether clients upload statistics in this round, and not prototypes."""
        return exchange_due(round_, self.every)

    def nothing(self) -> Globals:
        """Return the statistics before the first exchange: there are none."""
        return Globals.none(self.rows, self.values)
