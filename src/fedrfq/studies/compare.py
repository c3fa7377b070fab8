"""Methods compared in several settings, over the same seeds.

name = "mnist-methods"          the folder under --out; the file's own name if not given
seeds = [0, 1, 2, 3, 4]
target = 97.0                   optional: in which round is this own-head accuracy (%) reached?
against = ["fedproto"]          optional: whom the printed differences are taken from (table.json has all pairs);
                                otherwise fedproto, or else the first method that exchanges prototypes, or the first
methods = ["local", "fedproto"] names; or sections, each with what it changes of the experiment:
[methods."stride 2"]            a label; where it is a method's name, that is the method
method = {name = "fedrfq"}
pool = {stride = 2}
[experiment]                    what all runs have in common: any keys of an experiment but name and seed
rounds = 100
data = {name = "mnist"}
[settings."3 ± 2"]              optional: what each setting changes of it
partition = {ways = 3, spread = 2}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError, nearest
from fedrfq.experiment import Experiment
from fedrfq.files.toml import Table
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.studies import study_file
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Difference, Spread, difference, spread

KEYS = ("name", "seeds", "target", "against", "methods", "experiment", "settings")
ALL = "all settings"
Place = tuple[str, str, int]  # setting, method, seed


@dataclass(frozen=True)
class Comparison:
    """A file's grid: the experiment of each setting, method and seed."""

    name: str
    seeds: tuple[int, ...]
    target: float | None
    against: tuple[str, ...]
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    experiments: Mapping[Place, Experiment]

    @staticmethod
    def load(path: Path) -> Comparison:
        table = study_file.read(path, KEYS, "examples/compare.toml")
        seeds = study_file.whole_numbers(table, "seeds", 0, "[0, 1, 2]")
        methods = {
            label: _method(label, changes)
            for label, changes in study_file.labels(table, "methods", list(METHODS)).items()
        }
        if "settings" in table:
            settings = study_file.labels(table, "settings")
        else:
            settings = {"": {}}
        if ALL in settings:
            raise UserError(f"settings: '{ALL}' is what their mean is called: choose another label")
        common = study_file.section(table, "experiment")
        experiments = {
            (setting, method, seed): study_file.experiment(
                f"method '{method}'" + (f", setting '{setting}'" if setting else ""),
                table["name"],
                seed,
                [common, changes, own],
            )
            for setting, changes in settings.items()
            for method, own in methods.items()
            for seed in seeds
        }
        against = _against(table, {method: e for (_, method, _), e in experiments.items()})
        return Comparison(
            table["name"],
            seeds,
            _target(table),
            against,
            tuple(methods),
            tuple(settings),
            experiments,
        )


def _method(label: str, changes: Table) -> Table:
    """What a label changes of the experiment: a method's own name is that method."""
    method = study_file.named(label, study_file.section(changes, "method"), list(METHODS))
    if "name" not in method:
        near = nearest(label, list(METHODS))
        raise UserError(
            f"methods.{label}: method.name says which it is, one of {', '.join(METHODS)}{near}"
        )
    return {**changes, "method": method}


def _target(table: Mapping[str, Any]) -> float | None:
    target = table.get("target")
    if target is not None and (type(target) not in (int, float) or not 0 < target <= 100):
        raise UserError(f"target is an accuracy in percent, such as 97.0, not {target!r}")
    if target is None:
        return None
    return float(target)


def _against(table: Mapping[str, Any], methods: Mapping[str, Experiment]) -> tuple[str, ...]:
    given = table.get("against")
    if given is None:
        exchanging = [label for label, experiment in methods.items() if experiment.method.exchanges]
        return ("fedproto" if "fedproto" in methods else [*exchanging, *methods][0],)
    if not isinstance(given, list) or not all(
        isinstance(label, str) and label in methods for label in given
    ):
        raise UserError(
            f"against is a list of labels of methods ({', '.join(methods)}), not {given!r}"
        )
    return tuple(given)


@dataclass(frozen=True)
class ComparedRun:
    """One run's figures, all of its last round but where said; none of them if it diverged."""

    setting: str
    method: str
    seed: int
    directory: str
    diverged: str | None
    own: float | None
    own_std: float | None  # over clients
    prototype: float | None
    prototype_std: float | None
    rounds_to_target: int | None
    parameters: float | None  # uploaded by all clients in a round, mean over the rounds
    bytes: float | None
    collapsed: int | None
    seconds: float | None  # its share of the time of its stack

    @staticmethod
    def of(
        place: Place, ended: EndedRun, records: Sequence[RoundRecord], target: float | None
    ) -> ComparedRun:
        directory = ended.run.path.name
        if ended.diverged is not None:
            return ComparedRun(*place, directory, ended.diverged, *[None] * 9)
        last = records[-1]
        reached = [r.round for r in records if target is not None and r.accuracy_mean >= target]
        return ComparedRun(
            *place,
            directory,
            None,
            own=last.accuracy_mean,
            own_std=last.accuracy_std,
            prototype=last.prototype_accuracy_mean,
            prototype_std=last.prototype_accuracy_std,
            rounds_to_target=min(reached, default=None),
            parameters=fmean(r.parameters_up for r in records),
            bytes=fmean(r.bytes_up for r in records),
            collapsed=last.collapsed_clients,
            seconds=sum(r.seconds for r in records),
        )


@dataclass(frozen=True)
class ComparedCell:
    """A method in a setting, over its seeds."""

    setting: str
    method: str
    runs: int
    diverged: int
    own: Spread | None
    own_std: float | None  # over clients, mean over seeds
    prototype: Spread | None
    prototype_std: float | None
    reached: int
    rounds_to_target: float | None  # mean over the runs that reach it
    parameters: float | None
    bytes: float | None
    collapsed: float | None
    seconds: float | None

    @staticmethod
    def of(runs: Sequence[ComparedRun]) -> ComparedCell:
        rounds = [run.rounds_to_target for run in runs if run.rounds_to_target is not None]
        return ComparedCell(
            setting=runs[0].setting,
            method=runs[0].method,
            runs=len(runs),
            diverged=sum(run.diverged is not None for run in runs),
            own=spread([run.own for run in runs]),
            own_std=_mean([run.own_std for run in runs]),
            prototype=spread([run.prototype for run in runs]),
            prototype_std=_mean([run.prototype_std for run in runs]),
            reached=len(rounds),
            rounds_to_target=_mean(rounds),
            **{
                key: _mean([getattr(run, key) for run in runs])
                for key in ("parameters", "bytes", "collapsed", "seconds")
            },
        )


@dataclass(frozen=True)
class PairedDifference:
    """A method less another in a setting (or in all, each seed's mean over them), in points."""

    setting: str
    method: str
    other: str
    own: Difference | None
    prototype: Difference | None


@dataclass(frozen=True)
class ComparisonFindings:
    comparison: Comparison
    runs: tuple[ComparedRun, ...]
    cells: tuple[ComparedCell, ...]
    pairs: tuple[PairedDifference, ...]
    records: Mapping[Place, Sequence[RoundRecord]]  # of the runs that did not diverge

    @staticmethod
    def of(comparison: Comparison, ended: Mapping[str, EndedRun]) -> ComparisonFindings:
        ends = {
            place: ended[experiment.hash()] for place, experiment in comparison.experiments.items()
        }
        records = {place: end.records() for place, end in ends.items() if end.diverged is None}
        runs = [
            ComparedRun.of(place, end, records.get(place, ()), comparison.target)
            for place, end in ends.items()
        ]
        places = [
            (setting, method) for setting in comparison.settings for method in comparison.methods
        ]
        cells = tuple(
            ComparedCell.of([run for run in runs if (run.setting, run.method) == place])
            for place in places
        )
        return ComparisonFindings(
            comparison, tuple(runs), cells, tuple(_pairs(comparison, runs)), records
        )

    def table(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "name": self.comparison.name,
            "seeds": list(self.comparison.seeds),
            "target": self.comparison.target,
            "runs": [asdict(run) for run in self.runs],
            "cells": [asdict(cell) for cell in self.cells],
            "pairs": [asdict(pair) for pair in self.pairs],
        }


def _pairs(comparison: Comparison, runs: Sequence[ComparedRun]) -> list[PairedDifference]:
    """Every method less every other: in each setting, and over all of them where there are several."""
    values = {(run.setting, run.method, run.seed): (run.own, run.prototype) for run in runs}
    settings = comparison.settings
    pairs = []
    for setting in (*settings, *([ALL] if len(settings) > 1 else [])):
        if setting == ALL:
            among = settings
        else:
            among = (setting,)
        by_method = {
            method: [_over(values, among, method, seed) for seed in comparison.seeds]
            for method in comparison.methods
        }
        for method, ones in by_method.items():
            for other, others in by_method.items():
                if other != method:
                    own, prototype = (
                        difference([o[i] for o in ones], [o[i] for o in others]) for i in (0, 1)
                    )
                    pairs.append(PairedDifference(setting, method, other, own, prototype))
    return pairs


def _over(
    values: Mapping[Place, tuple[float | None, float | None]],
    settings: Sequence[str],
    method: str,
    seed: int,
) -> list[float | None]:
    """A seed's two accuracies, each the mean over the settings, if all of them have it."""
    columns = zip(*(values[setting, method, seed] for setting in settings), strict=True)
    return [
        None if None in column else fmean(value for value in column if value is not None)
        for column in columns
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    if found:
        return fmean(found)
    return None
