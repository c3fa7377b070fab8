"""Measures: the figures of the runs of a grid, by the labels of its axes, and their means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.studies.axes import Axes, Labels, Place
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, mean, spread

RoundFigure = Callable[[RoundRecord], float | None]
Figures = Mapping[str, Any]  # of one run, by measure


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1]


def total(values: Sequence[float | None]) -> float:
    """Return the sum over the rounds that have a figure."""
    return sum(value for value in values if value is not None)


@dataclass(frozen=True)
class Measure:
    """A figure of a run, read either from its rounds or from its summary.

    A figure of rounds is that of the last round, unless `over` makes another of all rounds' values;
    its values round by round make a curve. A count of all clients together may be a
    `total_per_client`: then the curve is what each client has had so far.
    """

    title: str
    digits: int
    of_round: RoundFigure | None = None
    summary_key: str = ""
    over: Callable[[Sequence[float | None]], float | None] = _last
    total_per_client: bool = False

    def of(
        self, records: Sequence[RoundRecord], summary: Mapping[str, Any], clients: int
    ) -> float | None:
        """Return the figure of a run with these records and this summary."""
        if self.of_round is not None:
            return self.over(self.by_round(records, clients))
        # Undefined figures, such as a precision where nothing was dropped, are None or nan.
        figure = summary.get(self.summary_key)
        if figure is None or math.isnan(figure):
            return None
        return float(figure)

    def by_round(self, records: Sequence[RoundRecord], clients: int) -> list[float | None]:
        """Return the figure of each round; none if it is one of the summary."""
        if self.of_round is None:
            return []
        values = [self.of_round(record) for record in records]
        if self.total_per_client:
            return [total(values[: i + 1]) / clients for i in range(len(values))]
        return values


def _percent(share: float | None) -> float | None:
    if share is None:
        return None
    return 100 * share


def _first_present(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


# A run without attackers records no separate figures for honest clients: all of them are honest.
def _honest_accuracy(record: RoundRecord) -> float | None:
    return _first_present(record.honest_accuracy_mean, record.accuracy_mean)


def _honest_prototype_accuracy(record: RoundRecord) -> float | None:
    return _first_present(record.honest_prototype_accuracy_mean, record.prototype_accuracy_mean)


# The ways to predict on the common test set, by the prefixes of their figures in a record.
_WAYS = {"": "", "head_": "own head, ", "prototype_": "nearest prototype, ", "public_": "public, "}
_ON_ALL_CLASSES = {
    "accuracy_all": "all classes, %",
    "accuracy_held": "held classes, all answers allowed, %",
    "accuracy_unheld": "classes not held, %",
    "ece": "calibration error (ECE), %",
}


MEASURES: dict[str, Measure] = {
    "own": Measure("own head, %", 2, lambda r: r.accuracy_mean),
    "own_std": Measure(
        "own head: standard deviation over clients, points", 2, lambda r: r.accuracy_std
    ),
    "own_legacy": Measure(
        "own head: standard deviation as FedProto's code computes it",
        2,
        lambda r: r.accuracy_std_running,
    ),
    "prototype": Measure("nearest global prototype, %", 2, lambda r: r.prototype_accuracy_mean),
    "prototype_std": Measure(
        "nearest prototype: standard deviation over clients, points",
        2,
        lambda r: r.prototype_accuracy_std,
    ),
    "honest": Measure("honest clients, own head, %", 2, _honest_accuracy),
    "honest_prototype": Measure(
        "honest clients, nearest global prototype, %", 2, _honest_prototype_accuracy
    ),
    "failure": Measure("prototype failure, % of pairs", 2, lambda r: _percent(r.prototype_failure)),
    "loss": Measure("training loss", 3, lambda r: r.loss),
    "collapsed": Measure("collapsed clients", 1, lambda r: float(r.collapsed_clients)),
    "parameters": Measure(
        "values uploaded per round", 0, lambda r: float(r.parameters_up), over=mean
    ),
    "bytes": Measure("bytes uploaded per round", 0, lambda r: float(r.bytes_up), over=mean),
    "traffic": Measure(
        "bytes per client in all, up and down",
        0,
        lambda r: float(r.bytes_up + r.bytes_down),
        total_per_client=True,
    ),
    "seconds": Measure(
        "seconds: the run's share of its stack's", 1, lambda r: r.seconds, over=total
    ),
    "silhouette": Measure("silhouette of the exchanged values", 3, summary_key="silhouette"),
    "silhouette_unpooled": Measure(
        "silhouette before pooling", 3, summary_key="silhouette_unpooled"
    ),
    "recall": Measure(
        "recall: share of malicious uploads dropped", 3, summary_key="detector_recall"
    ),
    "precision": Measure(
        "precision: share of dropped uploads that were malicious",
        3,
        summary_key="detector_precision",
    ),
    "honest_weight_lost": Measure(
        "honest clients' weight lost, %", 2, lambda r: r.honest_weight_lost, over=mean
    ),
    "longest_shut_out": Measure(
        "rounds in a row that an honest client was shut out, at most",
        1,
        summary_key="longest_shut_out",
    ),
    "accuracy_all_worst": Measure(
        "all classes, worst client, %", 2, lambda r: r.accuracy_all_worst
    ),
    **{
        f"{prefix}{name}": Measure(f"{way}{title}", 2, attrgetter(f"{prefix}{name}"))
        for prefix, way in _WAYS.items()
        for name, title in _ON_ALL_CLASSES.items()
    },
}
# Errors, spreads and costs: of two labels the one with the lower figure does better.
LOWER_IS_BETTER = frozenset(
    {
        *("own_std", "own_legacy", "prototype_std", "failure", "loss", "collapsed"),
        *("parameters", "bytes", "traffic", "seconds", "honest_weight_lost", "longest_shut_out"),
        *(f"{prefix}ece" for prefix in _WAYS),
    }
)


@dataclass(frozen=True)
class MeasuredRuns:
    """The figures of a grid's runs; a run that diverged has none."""

    axes: Axes
    figures: Mapping[Place, Figures]
    diverged: Mapping[Place, str]
    records: Mapping[Place, Sequence[RoundRecord]]

    @staticmethod
    def of(
        axes: Axes, ended: Mapping[str, EndedRun], measures: Mapping[str, Measure] = MEASURES
    ) -> MeasuredRuns:
        """Take the measures of the runs, which are given by experiment hash."""
        figures = {}
        diverged = {}
        records = {}
        for place, experiment in axes.experiments.items():
            end = ended[experiment.hash()]
            if end.diverged is not None:
                diverged[place] = end.diverged
                continue
            records[place] = end.records()
            summary = end.run.result() or {}
            known = {"directory": end.run.path.name, "lam": lam_of(experiment)}
            figures[place] = known | {
                name: measure.of(records[place], summary, experiment.clients)
                for name, measure in measures.items()
            }
        return MeasuredRuns(axes, figures, diverged, records)

    @staticmethod
    def recorded(axes: Axes, rows: Iterable[Figures]) -> MeasuredRuns:
        """Take the figures from rows that `rows` made, such as those of a table.json."""
        figures = {}
        diverged = {}
        for row in rows:
            labels = tuple(str(row[axis]) for axis in axes.labels)
            place = (labels, int(row["seed"]))
            if row["diverged"]:
                diverged[place] = row["diverged"]
            else:
                figures[place] = row
        return MeasuredRuns(axes, figures, diverged, {})

    def value(self, measure: str, labels: Labels, seed: int) -> Any:
        """Return one run's figure, or None if the run has none."""
        return self.figures.get((labels, seed), {}).get(measure)

    def curve(self, measure: str, labels: Labels, seed: int) -> list[float] | None:
        """Return one run's figure round by round, or None if some round lacks it."""
        place = (labels, seed)
        clients = self.axes.experiments[place].clients
        values = MEASURES[measure].by_round(self.records.get(place, ()), clients)
        present = [value for value in values if value is not None]
        if present and len(present) == len(values):
            return present
        return None

    def curves(self, measure: str, labels: Labels) -> list[list[float]]:
        """Return the curve of each seed that has one."""
        seeds = [seed for seed in self.axes.seeds if (labels, seed) in self.records]
        found = [self.curve(measure, labels, seed) for seed in seeds]
        return [curve for curve in found if curve is not None]

    def values(self, measure: str, labels: Labels) -> list[Any]:
        """Return the figure of each seed."""
        return [self.value(measure, labels, seed) for seed in self.axes.seeds]

    def spread(self, measure: str, labels: Labels) -> Spread | None:
        """Return the figure's mean and interval over seeds."""
        return spread(self.values(measure, labels))

    def mean(self, measure: str, labels: Labels) -> float | None:
        """Return the figure's mean over the seeds that have it."""
        return mean(self.values(measure, labels))

    def share(self, part: str, whole: str, labels: Labels) -> float | None:
        """Return the sum of a figure divided by that of another, over all seeds together."""
        of = total(self.values(whole, labels))
        if not of:
            return None
        return total(self.values(part, labels)) / of

    def count(self, labels: Labels) -> int:
        """Count the finished runs of a combination; a `where` rule may give it fewer seeds."""
        runs = sum((labels, seed) in self.axes.experiments for seed in self.axes.seeds)
        return runs - self.gone(labels)

    def gone(self, labels: Labels) -> int:
        """Count the runs of a combination that diverged."""
        return sum((labels, seed) in self.diverged for seed in self.axes.seeds)

    def seeds_in_words(self, combinations: Iterable[Labels]) -> str:
        """Say over how many seeds the means of these combinations are taken."""
        counts = sorted({self.count(labels) for labels in combinations}) or [0]
        fewest = counts[0]
        largest = counts[-1]
        if fewest < largest:
            return f"{fewest} to {largest} seeds"
        if largest == 1:
            return "1 seed"
        return f"{largest} seeds"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run, with every figure."""
        # A run that diverged has the same columns as the others, without values.
        columns = dict.fromkeys(key for figures in self.figures.values() for key in figures)
        return [
            {
                **self.axes.named(labels),
                "seed": seed,
                **columns,
                **self.figures.get((labels, seed), {}),
                "diverged": self.diverged.get((labels, seed), ""),
            }
            for labels, seed in self.axes.experiments
        ]


def lam_of(experiment: Experiment) -> float | None:
    """Return the λ of an experiment's method, if it has one."""
    return getattr(experiment.method, "lam", None)


def known_measures(given: Any, key: str) -> tuple[str, ...]:
    """Check a list of measures that a file gives under `key`."""
    # The membership test is on a list: a value in the file may be a table, which cannot be hashed.
    known = list(MEASURES)
    if not isinstance(given, list) or not given or any(name not in known for name in given):
        raise UserError(
            f"{key} must be a list of measures, not {given!r}; they are {', '.join(known)}"
        )
    return tuple(given)
