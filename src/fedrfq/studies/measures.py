"""Measures: the figures of the runs of a grid, by the labels of its axes, and their means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, spread

RoundFigure = Callable[[RoundRecord], float | None]


@dataclass(frozen=True)
class Measure:
    """A figure of a run, read either from its rounds or from its summary.

    A figure of rounds is that of the last round, or the mean over all rounds if `mean_over_rounds`;
    its values round by round make a curve. A count of all clients together may be a
    `total_per_client`: then the curve is what each client has had so far.
    """

    title: str
    digits: int
    of_round: RoundFigure | None = None
    summary_key: str = ""
    mean_over_rounds: bool = False
    total_per_client: bool = False


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
        "values uploaded per round", 0, lambda r: float(r.parameters_up), mean_over_rounds=True
    ),
    "bytes": Measure(
        "bytes uploaded per round", 0, lambda r: float(r.bytes_up), mean_over_rounds=True
    ),
    "traffic": Measure(
        "bytes per client in all, up and down",
        0,
        lambda r: float(r.bytes_up + r.bytes_down),
        total_per_client=True,
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
    "accuracy_all_worst": Measure(
        "all classes, worst client, %", 2, lambda r: r.accuracy_all_worst
    ),
    **{
        f"{prefix}{name}": Measure(f"{way}{title}", 2, attrgetter(f"{prefix}{name}"))
        for prefix, way in _WAYS.items()
        for name, title in _ON_ALL_CLASSES.items()
    },
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
        """Read the records and summaries of the runs, which are given by experiment hash."""
        ends = {place: ended[experiment.hash()] for place, experiment in axes.experiments.items()}
        diverged = {place: end.diverged for place, end in ends.items() if end.diverged is not None}
        finished = {place: end for place, end in ends.items() if place not in diverged}
        records = {place: end.records() for place, end in finished.items()}
        summaries = {place: end.run.result() or {} for place, end in finished.items()}
        return MeasuredRuns(axes, records, summaries, diverged)

    def value(self, measure: str, labels: Labels, seed: int) -> float | None:
        """Return one run's figure, or None if the run has none."""
        wanted = MEASURES[measure]
        place = (labels, seed)
        if place not in self.records:
            return None
        if wanted.of_round is None:
            # Undefined figures, such as a precision where nothing was dropped, are None or nan.
            summary = self.summaries[place].get(wanted.summary_key)
            if summary is None or math.isnan(summary):
                return None
            return float(summary)
        values = self._by_round(wanted, wanted.of_round, place)
        if wanted.mean_over_rounds:
            return fmean(value for value in values if value is not None)
        return values[-1]

    def curve(self, measure: str, labels: Labels, seed: int) -> list[float] | None:
        """Return one run's figure round by round, or None if some round lacks it."""
        wanted = MEASURES[measure]
        if wanted.of_round is None:
            return None
        values = self._by_round(wanted, wanted.of_round, (labels, seed))
        present = [value for value in values if value is not None]
        if present and len(present) == len(values):
            return present
        return None

    def _by_round(
        self, wanted: Measure, of_round: RoundFigure, place: tuple[Labels, int]
    ) -> list[float | None]:
        values = [of_round(record) for record in self.records.get(place, ())]
        if not wanted.total_per_client:
            return values
        clients = self.axes.experiments[place].clients
        totals: list[float | None] = []
        total = 0.0
        for value in values:
            total += (value or 0.0) / clients
            totals.append(total)
        return totals

    def values(self, measure: str, labels: Labels) -> list[float | None]:
        """Return the figure of each seed."""
        return [self.value(measure, labels, seed) for seed in self.seeds()]

    def spread(self, measure: str, labels: Labels) -> Spread | None:
        """Return the figure's mean and interval over seeds."""
        return spread(self.values(measure, labels))

    def count(self, labels: Labels) -> int:
        """Count the finished runs of a combination; a `where` rule may give it fewer seeds."""
        return sum(
            at == labels and (at, seed) not in self.diverged for at, seed in self.axes.experiments
        )

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

    def seeds(self) -> list[int]:
        """Return the distinct seeds, in the order of the grid."""
        return list(dict.fromkeys(seed for _, seed in self.axes.experiments))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run, with every measure."""
        return [self._row(labels, seed) for labels, seed in self.axes.experiments]

    def _row(self, labels: Labels, seed: int) -> dict[str, Any]:
        return {
            **self.axes.named(labels),
            "seed": seed,
            **{measure: self.value(measure, labels, seed) for measure in MEASURES},
            "diverged": self.diverged.get((labels, seed), ""),
        }


def known_measures(given: Any, key: str) -> tuple[str, ...]:
    """Check a list of measures that a file gives under `key`."""
    # The membership test is on a list: a value in the file may be a table, which cannot be hashed.
    known = list(MEASURES)
    if not isinstance(given, list) or not given or any(name not in known for name in given):
        raise UserError(f"{key} must be a list of measures ({', '.join(known)}), not {given!r}")
    return tuple(given)
