"""Reruns: how far runs of one experiment, the same seed included, are from each other.

Two runs of one experiment are equal to the bit only on the same device and in equal stacks: sums of
floating-point numbers depend on their order. The intervals of a study are over its seeds, each run
once, so they say nothing about this.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrfq.errors import UserError
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.measures import MEASURES

# The accuracies that are compared between reruns, and the measures that they are.
_ACCURACIES = {"own": "own", "prototype": "prototype", "all_classes": "accuracy_all"}
_WORDS = {"own": "own head", "prototype": "nearest prototype", "all_classes": "all classes"}


@dataclass(frozen=True)
class Reruns:
    """The standard deviation between the runs of one experiment, pooled over experiments."""

    experiments: int  # that were run more than once
    runs: int  # of these experiments
    std: Mapping[str, float | None]  # in points, by accuracy

    @staticmethod
    def of(ended: Iterable[EndedRun]) -> Reruns:
        """Compare the runs that ended with the other runs of their experiments."""
        # Equal experiments have one run, which counts once.
        by_path = {end.run.path: end for end in ended if end.reruns}
        return Reruns.between([list(_accuracies(end.run, *end.reruns)) for end in by_path.values()])

    @staticmethod
    def between(experiments: Sequence[Sequence[Mapping[str, float | None]]]) -> Reruns:
        """Compare the accuracies of the runs of each experiment."""
        again = [runs for runs in experiments if len(runs) > 1]
        std = {name: _pooled([[run[name] for run in runs] for runs in again]) for name in _WORDS}
        return Reruns(len(again), sum(map(len, again)), std)

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"experiments": self.experiments, "runs": self.runs, "std": dict(self.std)}

    def note(self) -> str:
        """Say what intervals over seeds contain, and what is known about reruns."""
        text = (
            "Intervals and deviations over seeds contain what a seed draws: samples, clients and "
            "initial models. They contain neither the spread over clients nor that between reruns "
            "of one experiment."
        )
        known = [f"{std:.3f} ({_WORDS[name]})" for name, std in self.std.items() if std is not None]
        if not known:
            return f"{text} No experiment of this study was run more than once here."
        return (
            f"{text} Experiments that were run more than once: {self.experiments}, in {self.runs} "
            f"runs, with a standard deviation between them of {', '.join(known)} points."
        )


def _accuracies(*runs: RunDirectory) -> Iterator[dict[str, float | None]]:
    """Yield each run's accuracies after the last round."""
    for run in runs:
        try:
            last = run.rounds()[-1:]
        except UserError:
            # A study does not depend on damaged runs of others.
            continue
        if last:
            clients = run.experiment().clients
            yield {
                name: MEASURES[measure].of(last, {}, clients)
                for name, measure in _ACCURACIES.items()
            }


def _pooled(groups: Sequence[Sequence[float | None]]) -> float | None:
    """Return the standard deviation within groups, pooled; None if no group has two values."""
    squares = 0.0
    freedom = 0
    for group in groups:
        present = [value for value in group if value is not None]
        if len(present) > 1:
            squares += statistics.variance(present) * (len(present) - 1)
            freedom += len(present) - 1
    if not freedom:
        return None
    return math.sqrt(squares / freedom)
