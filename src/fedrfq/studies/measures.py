"""What the runs of a grid measured: figures by the labels of its axes, and their means over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, spread

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
    if share is None:
        return None
    return 100 * share


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


MEASURES: dict[str, Measure] = {
    "own": Measure("own head, %", 2, lambda r: r.accuracy_mean),
    "own_std": Measure(
        "own head: standard deviation over clients, points", 2, lambda r: r.accuracy_std
    ),
    "own_legacy": Measure(
        "own head: standard deviation as FedProto's code has it",
        2,
        lambda r: r.accuracy_std_running,
    ),
    "prototype": Measure("nearest global prototype, %", 2, lambda r: r.prototype_accuracy_mean),
    "prototype_std": Measure(
        "nearest prototype: standard deviation over clients", 2, lambda r: r.prototype_accuracy_std
    ),
    "honest": Measure(
        "honest clients, own head, %", 2, lambda r: _first(r.honest_accuracy_mean, r.accuracy_mean)
    ),
    "honest_prototype": Measure(
        "honest clients, nearest global prototype, %",
        2,
        lambda r: _first(r.honest_prototype_accuracy_mean, r.prototype_accuracy_mean),
    ),
    "failure": Measure("prototype failure, % of pairs", 2, lambda r: _percent(r.prototype_failure)),
    "loss": Measure("training loss", 3, lambda r: r.loss),
    "collapsed": Measure("collapsed clients", 1, lambda r: float(r.collapsed_clients)),
    "parameters": Measure(
        "values uploaded a round", 0, lambda r: float(r.parameters_up), mean=True
    ),
    "bytes": Measure("bytes uploaded a round", 0, lambda r: float(r.bytes_up), mean=True),
    "silhouette": Measure("silhouette of what is exchanged", 3, summary="silhouette"),
    "silhouette_unpooled": Measure("silhouette before pooling", 3, summary="silhouette_unpooled"),
    "recall": Measure("malicious uploads dropped, share", 3, summary="detector_recall"),
    "precision": Measure("of the dropped, malicious, share", 3, summary="detector_precision"),
}


@dataclass(frozen=True)
class MeasuredRuns:
    """The runs of a grid that have ended; a run that diverged has no figures."""

    axes: Axes
    records: Mapping[tuple[Labels, int], Sequence[RoundRecord]]
    summaries: Mapping[tuple[Labels, int], Mapping[str, Any]]
    diverged: Mapping[tuple[Labels, int], str]

    @staticmethod
    def of(axes: Axes, ended: Mapping[str, EndedRun]) -> MeasuredRuns:
        ends = {place: ended[experiment.hash()] for place, experiment in axes.experiments.items()}
        diverged = {place: end.diverged for place, end in ends.items() if end.diverged is not None}
        good = {place: end for place, end in ends.items() if place not in diverged}
        records = {place: end.records() for place, end in good.items()}
        return MeasuredRuns(
            axes, records, {place: end.run.result() or {} for place, end in good.items()}, diverged
        )

    def value(self, measure: str, labels: Labels, seed: int) -> float | None:
        """After the last round, or over all of them, as the measure is."""
        wanted = MEASURES[measure]
        place = (labels, seed)
        if place not in self.records:
            return None
        if wanted.record is None:
            found = self.summaries[place].get(wanted.summary)
            if found is None or found != found:
                return None
            return float(found)
        values = [wanted.record(record) for record in self.records[place]]
        if wanted.mean:
            return fmean(v for v in values if v is not None)
        return values[-1]

    def curve(self, measure: str, labels: Labels, seed: int) -> list[float] | None:
        """Round by round, if every round has it."""
        read = MEASURES[measure].record
        if read:
            values = [read(record) for record in self.records.get((labels, seed), ())]
        else:
            values = []
        whole = [value for value in values if value is not None]
        if whole and len(whole) == len(values):
            return whole
        return None

    def values(self, measure: str, labels: Labels) -> list[float | None]:
        """Seed by seed."""
        return [self.value(measure, labels, seed) for seed in self.seeds()]

    def spread(self, measure: str, labels: Labels) -> Spread | None:
        return spread(self.values(measure, labels))

    def count(self, labels: Labels) -> int:
        """Of runs that ended well: a rule may ask for fewer of some."""
        return sum(
            at == labels and (at, seed) not in self.diverged for at, seed in self.axes.experiments
        )

    def over(self, combinations: Iterable[Labels]) -> str:
        """Of how many seeds the figures of these are the means, in words."""
        counts = sorted({self.count(labels) for labels in combinations})
        if counts:
            most = counts[-1]
        else:
            most = 0
        if len(counts) > 1:
            return f"{counts[0]} to {most} seeds"
        return f"{most} seed{'' if most == 1 else 's'}"

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
    if (
        not isinstance(given, list)
        or not given
        or any(measure not in list(MEASURES) for measure in given)
    ):
        raise UserError(f"{key} is a list of measures ({', '.join(MEASURES)}), not {given!r}")
    return tuple(given)
