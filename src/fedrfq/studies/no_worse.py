"""Whether a method is nowhere worse than others, by every bound below a margin.

[no_worse]                      optional
method = "fedrfq-coded"         the method that is judged
than = ["codes", "fedproto"]    those it is judged against
margin = 0.3                    how many points below them its bounds may lie

A bound is the lower end of the 95 % interval of a difference, paired over seeds. There is one for
every setting, method of `than` and accuracy that both have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from fedrfq.errors import UserError
from fedrfq.experiment import check_keys
from fedrfq.studies.differences import Pair
from fedrfq.studies.intervals import Difference
from fedrfq.studies.sheets import Sheet, interval, number
from fedrfq.studies.study import section

_KEYS = ("method", "than", "margin")


@dataclass(frozen=True)
class Bound:
    """The lower end of a difference's interval, in points."""

    setting: str
    other: str
    accuracy: str
    difference: Difference

    @property
    def points(self) -> float:
        """The lower end; a single seed shows nothing."""
        if self.difference.half is None:
            return -inf
        return self.difference.mean - self.difference.half


@dataclass(frozen=True)
class NoWorse:
    """That no bound of a method against any of some others lies below a margin."""

    method: str
    than: tuple[str, ...]
    margin: float

    @staticmethod
    def of(table: Mapping[str, Any], methods: Set[str]) -> NoWorse | None:
        """Read and check [no_worse] of a comparison of these methods; None if there is none."""
        given = section(table, "no_worse")
        if not given:
            return None
        check_keys(given, _KEYS, "no_worse")
        method = given.get("method")
        than = given.get("than")
        margin = given.get("margin", 0.0)
        if method not in methods or not isinstance(than, list) or set(map(str, than)) - methods:
            raise UserError(
                'no_worse: write method = "METHOD" and than = ["METHOD", …], of '
                f"{', '.join(sorted(methods))}, not {method!r} and {than!r}"
            )
        # type() and not isinstance(): True is an int too.
        if type(margin) not in (int, float) or not 0 <= margin < inf:
            raise UserError(f"no_worse.margin must be points, such as 0.3, not {margin!r}")
        return NoWorse(str(method), tuple(map(str, than)), float(margin))

    def bounds(self, pairs: Sequence[Pair], settings: Collection[str]) -> list[Bound]:
        """Return every bound of the method in these settings."""
        return [
            Bound(pair.where, pair.other, accuracy, difference)
            for pair in pairs
            if pair.label == self.method and pair.other in self.than and pair.where in settings
            for accuracy, difference in pair.differences.items()
            if difference is not None
        ]

    def below(self, bounds: Sequence[Bound]) -> list[Bound]:
        """Return the bounds below the margin."""
        return [bound for bound in bounds if bound.points < -self.margin]

    def plain(self, bounds: Sequence[Bound]) -> dict[str, Any]:
        """Return what was found as plain values."""
        below = [asdict(bound) for bound in self.below(bounds)]
        return {**asdict(self), "bounds": len(bounds), "below": below}

    def sheet(self, bounds: Sequence[Bound], titles: Mapping[str, str]) -> Sheet:
        """Return the table of the bounds below the margin; `titles` are those of the accuracies."""
        below = self.below(bounds)
        decided = sum(bound.difference.verdict == "worse" for bound in below)
        rows = tuple(
            (
                bound.setting,
                bound.other,
                titles[bound.accuracy],
                interval(bound.difference),
                number(bound.points, "+.2f"),
            )
            for bound in below
        )
        note = (
            f"Of {len(bounds)} bounds of {self.method} against {', '.join(self.than)}, "
            f"{len(below)} lie below −{self.margin:g}; {decided} of these differences are decided. "
            "A bound is "
            "the lower end of a difference's 95 % interval, paired over seeds, in points."
        )
        title = f"Where {self.method} may be worse by more than {self.margin:g} points"
        header = ("setting", "than", "accuracy", "difference", "bound")
        return Sheet(title, header, rows, note, labels=3)
