"""Claims: that one label of an axis is better than another, judged by what a grid of runs measured.

[[claims]]                            optional
says = "FedRFQ before FedProto"
measure = "own"
better = {method = "fedrfq"}          a label of an axis
than = {method = "fedproto"}          another of the same; left out: all others, one by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError, nearest
from fedrfq.experiment import known
from fedrfq.studies import study_file
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.intervals import Difference, difference
from fedrfq.studies.measures import MeasuredRuns, known_measures
from fedrfq.studies.sheets import NOTHING, Sheet, interval

ALL = "all together"


@dataclass(frozen=True)
class Claim:
    """That one label of an axis is better than another, or than all others."""

    says: str
    measure: str
    axis: str
    better: str
    than: str | None

    @staticmethod
    def of(given: Any, axes: Axes) -> Claim:
        table = study_file.section({"claims": given}, "claims")
        known(table, ("says", "measure", "better", "than"), "claims")
        better = study_file.section(table, "better")
        than = study_file.section(table, "than")
        axis = next(iter(better), "")
        if axis in axes.labels:
            places = (*axes.labels[axis], *axes.left_out[axis])
        else:
            places = ()
        for label in (*better.values(), *than.values()):
            if len(better) != 1 or set(than) - {axis} or label not in places:
                near = nearest(str(label), list(places))
                raise UserError(
                    f'claims: better = {{AXIS = "LABEL"}}, than another label of it, not {better} {than}{near}'
                )
        measure = known_measures([table.get("measure")], "claims.measure")[0]
        return Claim(str(table.get("says", "")), measure, axis, better[axis], than.get(axis))

    def judged(self, measured: MeasuredRuns) -> list[Judged]:
        """Where the other axes stand so and so, and over all of that together."""
        at = measured.axes.at(self.axis)
        there = set(measured.axes.combinations())
        ours = [labels for labels in measured.axes.combinations() if labels[at] == self.better]
        found = []
        totals = []
        for labels in ours:
            others = [
                _other(labels, at, o) for o in measured.axes.labels[self.axis] if o != self.better
            ]
            against = [o for o in others if o in there and self.than in (None, o[at])]
            if against:
                found.append(self._judged(measured, [labels], [[o] for o in against], labels))
        if len(found) > 1:
            if self.than:
                named = [self.than]
            else:
                named = [o for o in measured.axes.labels[self.axis] if o != self.better]
            shared = [[_other(labels, at, o) for labels in ours] for o in named]
            totals = [others for others in shared if set(others) <= there]
        return found + ([self._judged(measured, ours, totals, None)] if totals else [])

    def _judged(
        self,
        measured: MeasuredRuns,
        ours: Sequence[Labels],
        others: Sequence[Sequence[Labels]],
        labels: Labels | None,
    ) -> Judged:
        at = measured.axes.at(self.axis)
        own = _means(measured, self.measure, ours)
        found = {
            other[0][at]: difference(own, _means(measured, self.measure, other)) for other in others
        }
        if labels is None:
            rest = ALL
        else:
            rest = ", ".join(label for i, label in enumerate(labels) if i != at)
        return Judged(self.says, rest, {label: d for label, d in found.items() if d is not None})


def _other(labels: Labels, at: int, label: str) -> Labels:
    return (*labels[:at], label, *labels[at + 1 :])


def _means(measured: MeasuredRuns, measure: str, places: Sequence[Labels]) -> list[float | None]:
    """Seed by seed, the mean over the places, if all of them have it."""
    columns = zip(*(measured.values(measure, labels) for labels in places), strict=True)
    return [
        None if None in column else fmean(v for v in column if v is not None) for column in columns
    ]


@dataclass(frozen=True)
class Judged:
    """A claim at a place: the differences it rests on, in points, paired over seeds."""

    says: str
    where: str
    differences: Mapping[str, Difference]

    @property
    def verdict(self) -> str:
        """Holds: better than each at the 95 % level. Fails: worse than one of them at that level."""
        found = [d.verdict for d in self.differences.values()]
        if "worse" in found:
            return "fails"
        if found and all(verdict == "better" for verdict in found):
            return "holds"
        return "undecided"

    def closest(self) -> tuple[str, Difference] | None:
        """The one it is least ahead of."""
        return min(self.differences.items(), key=lambda pair: pair[1].mean, default=None)

    def plain(self) -> dict[str, Any]:
        differences = {label: asdict(d) for label, d in self.differences.items()}
        return {
            "says": self.says,
            "where": self.where,
            "verdict": self.verdict,
            "differences": differences,
        }


def claims(table: Mapping[str, Any], axes: Axes) -> list[Claim]:
    given = table.get("claims", [])
    if not isinstance(given, list):
        raise UserError("claims is a list of tables: [[claims]]")
    return [Claim.of(claim, axes) for claim in given]


def judge(wanted: Sequence[Claim], measured: MeasuredRuns) -> list[Judged]:
    return [judged for claim in wanted for judged in claim.judged(measured)]


def claims_sheet(judged: Sequence[Judged]) -> Sheet:
    rows = []
    for one in judged:
        closest = one.closest()
        if closest is None:
            against = NOTHING
            found = NOTHING
        else:
            against = closest[0]
            found = interval(closest[1])
        rows.append((one.says, one.where, one.verdict, against, found))
    note = (
        "holds: better at the 95 % level (Student's t, paired over seeds), in each comparison by itself; fails: worse than "
        "one of them at that level; the last columns are the comparison it comes off worst in"
    )
    return Sheet(
        "The claims", ("claim", "where", "measured", "closest", "difference"), tuple(rows), note, 4
    )
