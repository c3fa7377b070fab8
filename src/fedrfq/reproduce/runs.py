"""What the runs of a grid measured: figures by the labels of its axes, their means over seeds, and the paper's claims.

[[claims]]                            optional
says = "FedRFQ before FedProto"
measure = "own"
better = {method = "fedrfq"}          a label of an axis
than = {method = "fedproto"}          another of the same; left out: all others, one by one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedrfq import gridfile
from fedrfq.errors import UserError, nearest
from fedrfq.experiment import known
from fedrfq.grid import Ended
from fedrfq.measure import RoundRecord
from fedrfq.reproduce.axes import Axes, Labels
from fedrfq.sheets import NOTHING, Sheet, interval
from fedrfq.statistics import Difference, Spread, difference, spread

ALL = "all together"
Last = Callable[[RoundRecord], float | None]


@dataclass(frozen=True)
class Measure:
    """A figure of a run: of one of its rounds (all of them make a curve), or of the whole run's summary."""

    title: str
    digits: int
    record: Last | None = None
    summary: str = ""
    mean: bool = False  # over all rounds, not the last one's


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


MEASURES: dict[str, Measure] = {
    "own": Measure("own head, %", 2, lambda r: r.accuracy_mean),
    "own_std": Measure("own head: standard deviation over clients, points", 2, lambda r: r.accuracy_std),
    "own_legacy": Measure("own head: standard deviation as FedProto's code has it", 2, lambda r: r.accuracy_std_running),
    "prototype": Measure("nearest global prototype, %", 2, lambda r: r.prototype_accuracy_mean),
    "prototype_std": Measure("nearest prototype: standard deviation over clients", 2, lambda r: r.prototype_accuracy_std),
    "honest": Measure("honest clients, own head, %", 2, lambda r: _first(r.honest_accuracy_mean, r.accuracy_mean)),
    "honest_prototype": Measure(
        "honest clients, nearest global prototype, %",
        2,
        lambda r: _first(r.honest_prototype_accuracy_mean, r.prototype_accuracy_mean),
    ),
    "failure": Measure("prototype failure, % of pairs", 2, lambda r: _percent(r.prototype_failure)),
    "loss": Measure("training loss", 3, lambda r: r.loss),
    "collapsed": Measure("collapsed clients", 1, lambda r: float(r.collapsed_clients)),
    "parameters": Measure("values uploaded a round", 0, lambda r: float(r.parameters_up), mean=True),
    "bytes": Measure("bytes uploaded a round", 0, lambda r: float(r.bytes_up), mean=True),
    "silhouette": Measure("silhouette of what is exchanged", 3, summary="silhouette"),
    "silhouette_unpooled": Measure("silhouette before pooling", 3, summary="silhouette_unpooled"),
    "recall": Measure("malicious uploads dropped, share", 3, summary="detector_recall"),
    "precision": Measure("of the dropped, malicious, share", 3, summary="detector_precision"),
}


@dataclass(frozen=True)
class Measured:
    """The runs of a grid that have ended; a run that diverged has no figures."""

    axes: Axes
    records: Mapping[tuple[Labels, int], Sequence[RoundRecord]]
    summaries: Mapping[tuple[Labels, int], Mapping[str, Any]]
    diverged: Mapping[tuple[Labels, int], str]

    @staticmethod
    def of(axes: Axes, ended: Mapping[str, Ended]) -> Measured:
        ends = {place: ended[experiment.hash()] for place, experiment in axes.experiments.items()}
        diverged = {place: end.diverged for place, end in ends.items() if end.diverged is not None}
        good = {place: end for place, end in ends.items() if place not in diverged}
        records = {place: end.records() for place, end in good.items()}
        return Measured(axes, records, {place: end.run.result() or {} for place, end in good.items()}, diverged)

    def value(self, measure: str, labels: Labels, seed: int) -> float | None:
        """After the last round, or over all of them, as the measure is."""
        wanted, place = MEASURES[measure], (labels, seed)
        if place not in self.records:
            return None
        if wanted.record is None:
            found = self.summaries[place].get(wanted.summary)
            return None if found is None or found != found else float(found)
        values = [wanted.record(record) for record in self.records[place]]
        return fmean(v for v in values if v is not None) if wanted.mean else values[-1]

    def curve(self, measure: str, labels: Labels, seed: int) -> list[float] | None:
        """Round by round, if every round has it."""
        read = MEASURES[measure].record
        values = [read(record) for record in self.records.get((labels, seed), ())] if read else []
        whole = [value for value in values if value is not None]
        return whole if whole and len(whole) == len(values) else None

    def values(self, measure: str, labels: Labels) -> list[float | None]:
        """Seed by seed."""
        return [self.value(measure, labels, seed) for seed in self.seeds()]

    def spread(self, measure: str, labels: Labels) -> Spread | None:
        return spread(self.values(measure, labels))

    def seeds(self) -> list[int]:
        return list(dict.fromkeys(seed for _, seed in self.axes.experiments))

    def runs(self) -> list[dict[str, Any]]:
        """A row a run, with every measure."""
        return [
            {**dict(zip(self.axes.labels, labels, strict=True)), "seed": seed}
            | {measure: self.value(measure, labels, seed) for measure in MEASURES}
            | {"diverged": self.diverged.get((labels, seed), "")}
            for labels, seed in self.axes.experiments
        ]


def known_measures(given: Any, key: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or any(measure not in list(MEASURES) for measure in given):
        raise UserError(f"{key} is a list of measures ({', '.join(MEASURES)}), not {given!r}")
    return tuple(given)


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
        table = gridfile.section({"claims": given}, "claims")
        known(table, ("says", "measure", "better", "than"), "claims")
        better, than = gridfile.section(table, "better"), gridfile.section(table, "than")
        axis = next(iter(better), "")
        places = (*axes.labels[axis], *axes.left_out[axis]) if axis in axes.labels else ()
        for label in (*better.values(), *than.values()):
            if len(better) != 1 or set(than) - {axis} or label not in places:
                near = nearest(str(label), list(places))
                raise UserError(f'claims: better = {{AXIS = "LABEL"}}, than another label of it, not {better} {than}{near}')
        measure = known_measures([table.get("measure")], "claims.measure")[0]
        return Claim(str(table.get("says", "")), measure, axis, better[axis], than.get(axis))

    def judged(self, measured: Measured) -> list[Judged]:
        """Where the other axes stand so and so, and over all of that together."""
        at = measured.axes.at(self.axis)
        there = set(measured.axes.combinations())
        ours = [labels for labels in measured.axes.combinations() if labels[at] == self.better]
        found, totals = [], []
        for labels in ours:
            others = [_other(labels, at, o) for o in measured.axes.labels[self.axis] if o != self.better]
            against = [o for o in others if o in there and self.than in (None, o[at])]
            if against:
                found.append(self._judged(measured, [labels], [[o] for o in against], labels))
        if len(found) > 1:
            named = [self.than] if self.than else [o for o in measured.axes.labels[self.axis] if o != self.better]
            shared = [[_other(labels, at, o) for labels in ours] for o in named]
            totals = [others for others in shared if set(others) <= there]
        return found + ([self._judged(measured, ours, totals, None)] if totals else [])

    def _judged(
        self, measured: Measured, ours: Sequence[Labels], others: Sequence[Sequence[Labels]], labels: Labels | None
    ) -> Judged:
        at = measured.axes.at(self.axis)
        own = _means(measured, self.measure, ours)
        found = {other[0][at]: difference(own, _means(measured, self.measure, other)) for other in others}
        rest = ALL if labels is None else ", ".join(label for i, label in enumerate(labels) if i != at)
        return Judged(self.says, rest, {label: d for label, d in found.items() if d is not None})


def _other(labels: Labels, at: int, label: str) -> Labels:
    return (*labels[:at], label, *labels[at + 1 :])


def _means(measured: Measured, measure: str, places: Sequence[Labels]) -> list[float | None]:
    """Seed by seed, the mean over the places, if all of them have it."""
    columns = zip(*(measured.values(measure, labels) for labels in places), strict=True)
    return [None if None in column else fmean(v for v in column if v is not None) for column in columns]


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
        return "holds" if found and all(verdict == "better" for verdict in found) else "undecided"

    def closest(self) -> tuple[str, Difference] | None:
        """The one it is least ahead of."""
        return min(self.differences.items(), key=lambda pair: pair[1].mean, default=None)

    def plain(self) -> dict[str, Any]:
        differences = {label: asdict(d) for label, d in self.differences.items()}
        return {"says": self.says, "where": self.where, "verdict": self.verdict, "differences": differences}


def claims(table: Mapping[str, Any], axes: Axes) -> list[Claim]:
    given = table.get("claims", [])
    if not isinstance(given, list):
        raise UserError("claims is a list of tables: [[claims]]")
    return [Claim.of(claim, axes) for claim in given]


def judge(wanted: Sequence[Claim], measured: Measured) -> list[Judged]:
    return [judged for claim in wanted for judged in claim.judged(measured)]


def claims_sheet(judged: Sequence[Judged]) -> Sheet:
    rows = []
    for one in judged:
        closest = one.closest()
        against, found = (NOTHING, NOTHING) if closest is None else (closest[0], interval(closest[1]))
        rows.append((one.says, one.where, one.verdict, against, found))
    note = (
        "holds: better at the 95 % level (Student's t, paired over seeds), in each comparison by itself; fails: worse than "
        "one of them at that level; the last columns are the comparison it comes off worst in"
    )
    return Sheet("The claims", ("claim", "where", "measured", "closest", "difference"), tuple(rows), note, 4)
