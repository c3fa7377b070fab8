"""Claims: that one label of an axis is better than another, judged by the runs of a grid.

[[claims]]                            optional
says = "FedRFQ is better than FedProto"
measure = "own"
better = {method = "fedrfq"}          a label of an axis
than = {method = "fedproto"}          another label of it; if left out, all others, one by one
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import check_keys
from fedrfq.studies.axes import Axes
from fedrfq.studies.differences import paired, places
from fedrfq.studies.intervals import Difference
from fedrfq.studies.measures import LOWER_IS_BETTER, MEASURES, MeasuredRuns
from fedrfq.studies.sheets import NOTHING, Sheet, interval
from fedrfq.studies.study import section

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
    def of(given: Any, axes: Axes, measures: Sequence[str]) -> Claim:
        """Read and check one [[claims]] table about one of the measures."""
        table = section({"claims": given}, "claims")
        check_keys(table, ("says", "measure", "better", "than"), "claims")
        # Numbers of attackers may be written as numbers; labels are text.
        better = {axis: str(label) for axis, label in section(table, "better").items()}
        than = {axis: str(label) for axis, label in section(table, "than").items()}
        axis = next(iter(better), "")
        choices: list[str] = []
        if axis in axes.labels:
            # Labels that `only` leaves out are valid too; there is just nothing to judge then.
            choices = [*axes.labels[axis], *axes.hidden[axis]]
        wrong = [label for label in (*better.values(), *than.values()) if label not in choices]
        if len(better) != 1 or set(than) - {axis} or than == better or wrong:
            near = "".join(did_you_mean(label, choices) for label in wrong[:1])
            raise UserError(
                'claims: write better = {AXIS = "LABEL"} and than with another label of the '
                f"same axis, not {better} and {than}{near}"
            )
        measure = str(table.get("measure", ""))
        if measure not in measures:
            raise UserError(
                f"claims.measure must be a measure, not '{measure}'"
                f"{did_you_mean(measure, measures)}; they are {', '.join(measures)}"
            )
        return Claim(str(table.get("says", "")), measure, axis, better[axis], than.get(axis))

    def judged(self, measured: MeasuredRuns) -> list[Judged]:
        """Judge the claim at each combination of the other axes, then over all of them together."""
        verdicts = []
        for where, by_label in places(measured.axes, self.axis, ALL).items():
            rivals = [label for label in by_label if label != self.better]
            if self.than is not None:
                rivals = [label for label in rivals if label == self.than]
            if self.better not in by_label or not rivals:
                continue
            ours = by_label[self.better]
            found = {
                rival: paired(measured, self.measure, ours, by_label[rival]) for rival in rivals
            }
            differences = {rival: lead for rival, lead in found.items() if lead is not None}
            verdicts.append(Judged(self.says, self.measure, where, differences))
        return verdicts


@dataclass(frozen=True)
class Judged:
    """A claim judged at one place, by differences in points that are paired over seeds."""

    says: str
    measure: str
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
        """Return the rival that does best, and the difference from it."""
        strongest = min
        if self.measure in LOWER_IS_BETTER:
            strongest = max
        return strongest(self.differences.items(), key=lambda pair: pair[1].mean, default=None)

    def plain(self) -> dict[str, Any]:
        """Return the judgement as plain values."""
        return {
            "says": self.says,
            "measure": self.measure,
            "where": self.where,
            "verdict": self.verdict,
            "differences": {rival: asdict(paired) for rival, paired in self.differences.items()},
        }


def claims(
    table: Mapping[str, Any], axes: Axes, more_measures: Collection[str] = ()
) -> list[Claim]:
    """Read the claims of a study, whose kind may have more measures than others."""
    given = table.get("claims", [])
    if not isinstance(given, list):
        raise UserError("claims must be a list of tables; write [[claims]] before each")
    measures = list(dict.fromkeys([*MEASURES, *more_measures]))
    return [Claim.of(claim, axes, measures) for claim in given]


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
    header = ("claim", "where", "verdict", "closest rival", "difference from it")
    note = (
        "A claim holds if it is better than every rival at the 95 % level (Student's t, paired "
        "over seeds; each comparison by itself), fails if it is worse than one of them at that "
        "level, and is undecided otherwise. The last columns show the comparison in which it does "
        "worst."
    )
    return Sheet("The claims", header, tuple(rows), note, labels=4)
