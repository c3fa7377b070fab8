"""Claims: that one label of an axis is better than another, judged by the runs of a grid.

[[claims]]                            optional
says = "FedRFQ is better than FedProto"
measure = "own"
better = {method = "fedrfq"}          a label of an axis
than = {method = "fedproto"}          another label of it; if left out, all others, one by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import check_keys
from fedrfq.studies import study_file
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.intervals import Difference, difference
from fedrfq.studies.measures import MeasuredRuns, known_measures
from fedrfq.studies.sheets import NOTHING, Sheet, interval

ALL = "all together"


@dataclass(frozen=True)
class Claim:
    """The claim that one label of an axis is better than another, or than all others if None."""

    says: str
    measure: str
    axis: str
    better: str
    than: str | None

    @staticmethod
    def of(given: Any, axes: Axes) -> Claim:
        """Read and check one [[claims]] table."""
        table = study_file.section({"claims": given}, "claims")
        check_keys(table, ("says", "measure", "better", "than"), "claims")
        better = study_file.section(table, "better")
        than = study_file.section(table, "than")
        axis = next(iter(better), "")
        choices: list[str] = []
        if axis in axes.labels:
            # Labels that `only` leaves out are valid too; there is just nothing to judge then.
            choices = [*axes.labels[axis], *axes.left_out[axis]]
        for label in (*better.values(), *than.values()):
            if len(better) != 1 or set(than) - {axis} or label not in choices:
                raise UserError(
                    'claims: write better = {AXIS = "LABEL"} and than with another label of the '
                    f"same axis, not {better} and {than}{did_you_mean(str(label), choices)}"
                )
        measure = known_measures([table.get("measure")], "claims.measure")[0]
        return Claim(str(table.get("says", "")), measure, axis, better[axis], than.get(axis))

    def judged(self, measured: MeasuredRuns) -> list[Judged]:
        """Judge the claim at each combination of the other axes, then over all of them together."""
        axes = measured.axes
        at = axes.at(self.axis)
        existing = set(axes.combinations())
        ours = [labels for labels in axes.combinations() if labels[at] == self.better]
        rivals = [label for label in axes.labels[self.axis] if label != self.better]
        if self.than is not None:
            rivals = [label for label in rivals if label == self.than]
        verdicts = []
        for labels in ours:
            others = [_with_label(labels, at, rival) for rival in rivals]
            present = [[other] for other in others if other in existing]
            if present:
                where = ", ".join(label for i, label in enumerate(labels) if i != at)
                verdicts.append(self._judge(measured, [labels], present, where))
        if len(verdicts) > 1:
            everywhere = [[_with_label(labels, at, rival) for labels in ours] for rival in rivals]
            # A mean over everything is fair only to a rival that was run everywhere.
            complete = [others for others in everywhere if set(others) <= existing]
            if complete:
                verdicts.append(self._judge(measured, ours, complete, ALL))
        return verdicts

    def _judge(
        self,
        measured: MeasuredRuns,
        ours: Sequence[Labels],
        rivals: Sequence[Sequence[Labels]],
        where: str,
    ) -> Judged:
        """Compare our combinations with each rival's, as means over the combinations."""
        at = measured.axes.at(self.axis)
        our_means = _means(measured, self.measure, ours)
        differences = {}
        for combinations in rivals:
            paired = difference(our_means, _means(measured, self.measure, combinations))
            if paired is not None:
                differences[combinations[0][at]] = paired
        return Judged(self.says, where, differences)


def _with_label(labels: Labels, at: int, label: str) -> Labels:
    return (*labels[:at], label, *labels[at + 1 :])


def _means(measured: MeasuredRuns, measure: str, places: Sequence[Labels]) -> list[float | None]:
    """Return for each seed the mean over the places, or None if one of them has no figure."""
    means: list[float | None] = []
    for values in zip(*(measured.values(measure, labels) for labels in places), strict=True):
        present = [value for value in values if value is not None]
        complete = len(present) == len(values)
        means.append(fmean(present) if complete else None)
    return means


@dataclass(frozen=True)
class Judged:
    """A claim judged at one place, by differences in points that are paired over seeds."""

    says: str
    where: str
    differences: Mapping[str, Difference]

    @property
    def verdict(self) -> str:
        """Holds if better than every rival at the 95 % level; fails if worse than one of them."""
        verdicts = [paired.verdict for paired in self.differences.values()]
        if "worse" in verdicts:
            return "fails"
        if verdicts and all(verdict == "better" for verdict in verdicts):
            return "holds"
        return "undecided"

    def closest(self) -> tuple[str, Difference] | None:
        """Return the rival with the smallest lead over it, and that lead."""
        return min(self.differences.items(), key=lambda pair: pair[1].mean, default=None)

    def plain(self) -> dict[str, Any]:
        """Return the judgement as plain values."""
        return {
            "says": self.says,
            "where": self.where,
            "verdict": self.verdict,
            "differences": {rival: asdict(paired) for rival, paired in self.differences.items()},
        }


def claims(table: Mapping[str, Any], axes: Axes) -> list[Claim]:
    """Read the claims of a recipe."""
    given = table.get("claims", [])
    if not isinstance(given, list):
        raise UserError("claims must be a list of tables; write [[claims]] before each")
    return [Claim.of(claim, axes) for claim in given]


def judge(wanted: Sequence[Claim], measured: MeasuredRuns) -> list[Judged]:
    """Judge every claim wherever it can be judged."""
    return [judged for claim in wanted for judged in claim.judged(measured)]


def claims_sheet(judged: Sequence[Judged]) -> Sheet:
    """Return the table of judged claims."""
    rows = []
    for one in judged:
        closest = one.closest()
        if closest is None:
            rows.append((one.says, one.where, one.verdict, NOTHING, NOTHING))
        else:
            rival, lead = closest
            rows.append((one.says, one.where, one.verdict, rival, interval(lead)))
    header = ("claim", "where", "verdict", "closest rival", "lead over it")
    note = (
        "A claim holds if it is better than every rival at the 95 % level (Student's t, paired "
        "over seeds; each comparison by itself), fails if it is worse than one of them at that "
        "level, and is undecided otherwise. The last columns show the comparison in which it does "
        "worst."
    )
    return Sheet("The claims", header, tuple(rows), note, labels=4)
