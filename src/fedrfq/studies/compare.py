"""Compare methods in several settings over the same seeds.

name = "mnist-methods"          the folder under --out; the file's own name if not given
seeds = [0, 1, 2, 3, 4]
target = 97.0                   optional: an own-head accuracy (%); report the round that reaches it
against = ["fedproto"]          optional: the methods that printed differences are taken from; by
                                default fedproto, else the first method that exchanges prototypes,
                                else the first one (table.json has the differences of all pairs)
controls = true                 optional: local, codes and self stand beside the methods by default
tune = [0.1, 0.3, 1, 4]         optional: the λ to try (see tuning.py); [] to tune nothing
methods = ["local", "fedproto"] names; or a section for each label, with what it changes:
[methods."stride 2"]            a label that is a method's name stands for that method
method = {name = "fedrfq"}
pool = {stride = 2}
[experiment]                    shared by all runs: any keys of an experiment but name and seed
rounds = 100
data = {name = "mnist"}
[settings."3 ± 2"]              optional: a label for each setting, with what it changes
partition = {ways = 3, spread = 2}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import Experiment
from fedrfq.files.toml import Table
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.studies import study_file
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Difference, Spread, difference, spread
from fedrfq.studies.tuning import ChosenLam, Place, Tuning, lam_of, read_lams, with_lam

KEYS = (
    *("name", "seeds", "target", "against", "controls", "tune"),
    *("methods", "experiment", "settings"),
)
# Methods without exchange. One that sends something must beat them all.
CONTROLS = ("local", "codes", "self")
ALL = "all settings"


class MeanAccuracies(NamedTuple):
    """Accuracies in percent, means over clients.

    By the clients' own heads and by the nearest global prototype, on the classes that a client
    holds; then of the final prediction, with all classes allowed as answers.
    """

    own: float | None
    prototype: float | None
    all_classes: float | None
    held: float | None
    unheld: float | None


@dataclass(frozen=True)
class Comparison:
    """The grid of a comparison file: the experiment of each setting, method and seed."""

    name: str
    seeds: tuple[int, ...]
    target: float | None
    against: tuple[str, ...]
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    experiments: Mapping[Place, Experiment]
    left_out: tuple[str, ...]  # controls that are impossible in a setting, each with the reason
    tuning: Tuning
    chosen: tuple[ChosenLam, ...] = ()  # once the runs of the tuning have ended

    @staticmethod
    def load(path: Path, *, controls: bool = True, tune: bool = True) -> Comparison:
        """Read and check a comparison file; without `controls` or `tune`, whatever it says."""
        table = study_file.read(path, KEYS, "examples/compare.toml")
        if not controls:
            table["controls"] = False
        if not tune:
            table["tune"] = []
        seeds = study_file.whole_numbers(table, "seeds", 0, "[0, 1, 2]")
        asked = {
            label: _method(label, changes)
            for label, changes in study_file.labels(table, "methods", list(METHODS)).items()
        }
        methods = _with_controls(table, asked)
        settings = _settings(table)
        lams = read_lams(table.get("tune"))
        common = study_file.section(table, "experiment")
        experiments: dict[Place, Experiment] = {}
        tunable: dict[Place, Experiment] = {}
        left_out = []
        for (setting, method), layers in _layers(common, settings, methods).items():
            try:
                cell = _cell(table["name"], setting, method, seeds, layers)
            except UserError as error:
                if method in asked:
                    raise
                left_out.append(str(error))
                continue
            experiments |= cell
            # A λ in the file is there on purpose, such as where several are compared.
            if not any("lam" in study_file.section(layer, "method") for layer in layers):
                tunable |= cell
        by_method = {method: experiment for (_, method, _), experiment in experiments.items()}
        return Comparison(
            name=table["name"],
            seeds=seeds,
            target=_target(table),
            against=_against(table, by_method, asked),
            methods=tuple(label for label in methods if label in by_method),
            settings=tuple(settings),
            experiments=experiments,
            left_out=tuple(left_out),
            tuning=Tuning.of(seeds, lams, tunable),
        )

    def tuned(self, ended: Mapping[str, EndedRun]) -> Comparison:
        """Return the comparison with the λ that the runs of its tuning speak for."""
        chosen = self.tuning.choose(ended)
        lams = {(choice.setting, choice.method): choice.lam for choice in chosen}
        changed = {
            place: with_lam(experiment, lams[place[:2]])
            for place, experiment in self.experiments.items()
            if place[:2] in lams
        }
        return replace(self, experiments={**self.experiments, **changed}, chosen=chosen)


def _with_controls(table: Mapping[str, Any], asked: Mapping[str, Table]) -> dict[str, Table]:
    """Return what each label changes: the controls first, then the methods that were asked for."""
    wanted = table.get("controls", True)
    if type(wanted) is not bool:
        raise UserError(f"controls must be true or false, not {wanted!r}")
    if not wanted:
        return dict(asked)
    plain: dict[str, Table] = {name: {"method": {"name": name}} for name in CONTROLS}
    # A control that stands there under another label is not run twice.
    controls = {
        name: changes
        for name, changes in plain.items()
        if name in asked or changes not in asked.values()
    }
    return {**controls, **asked}


def _layers(
    common: Table, settings: Mapping[str, Table], methods: Mapping[str, Table]
) -> dict[tuple[str, str], list[Table]]:
    """Return what each setting and method lay over each other, the method last."""
    return {
        (setting, method): [common, setting_changes, method_changes]
        for setting, setting_changes in settings.items()
        for method, method_changes in methods.items()
    }


def _cell(
    name: str, setting: str, method: str, seeds: Sequence[int], layers: Sequence[Table]
) -> dict[Place, Experiment]:
    """Return the experiments of one method in one setting."""
    where = _in_words(setting, method)
    return {
        (setting, method, seed): study_file.experiment(where, name, seed, layers) for seed in seeds
    }


def _in_words(setting: str, method: str) -> str:
    if setting:
        return f"method '{method}', setting '{setting}'"
    return f"method '{method}'"


def _settings(table: Mapping[str, Any]) -> dict[str, Table]:
    # Without settings there is one, without a name: the common experiment as it is.
    if "settings" not in table:
        return {"": {}}
    settings = study_file.labels(table, "settings")
    if ALL in settings:
        raise UserError(
            f"settings: the label '{ALL}' is reserved for the mean over settings; choose another"
        )
    return settings


def _method(label: str, changes: Table) -> Table:
    """Return what a label changes of the experiment, with the method's name filled in."""
    method = study_file.named(label, study_file.section(changes, "method"), list(METHODS))
    if "name" not in method:
        near = did_you_mean(label, list(METHODS))
        raise UserError(
            f"methods.{label}: method.name is missing; it must be one of {', '.join(METHODS)}{near}"
        )
    return {**changes, "method": method}


def _target(table: Mapping[str, Any]) -> float | None:
    target = table.get("target")
    if target is None:
        return None
    if type(target) not in (int, float) or not 0 < target <= 100:
        raise UserError(f"target must be an accuracy in percent, such as 97.0, not {target!r}")
    return float(target)


def _against(
    table: Mapping[str, Any], methods: Mapping[str, Experiment], asked: Iterable[str]
) -> tuple[str, ...]:
    given = table.get("against")
    if given is None:
        return (_default_reference({label: methods[label] for label in asked}),)
    if not isinstance(given, list) or not all(
        isinstance(label, str) and label in methods for label in given
    ):
        raise UserError(
            f"against must be a list of labels of methods ({', '.join(methods)}), not {given!r}"
        )
    return tuple(given)


def _default_reference(methods: Mapping[str, Experiment]) -> str:
    if "fedproto" in methods:
        return "fedproto"
    exchanging = [label for label, experiment in methods.items() if experiment.method.exchanges]
    return [*exchanging, *methods][0]


@dataclass(frozen=True)
class ComparedRun:
    """One run's figures, taken after its last round unless noted; all None if it diverged."""

    setting: str
    method: str
    seed: int
    lam: float | None
    directory: str
    diverged: str | None
    own: float | None
    own_std: float | None  # over clients
    prototype: float | None
    prototype_std: float | None
    all_classes: float | None  # these three on the common test set
    held: float | None
    unheld: float | None
    rounds_to_target: int | None
    parameters: float | None  # uploaded by all clients in a round, mean over the rounds
    bytes: float | None
    collapsed: int | None
    seconds: float | None  # the run's share of the time that its stack took

    @staticmethod
    def of(
        place: Place,
        lam: float | None,
        ended: EndedRun,
        records: Sequence[RoundRecord],
        target: float | None,
    ) -> ComparedRun:
        """Take the figures from a run's records."""
        directory = ended.run.path.name
        if ended.diverged is not None:
            no_figures = [None] * 12
            return ComparedRun(*place, lam, directory, ended.diverged, *no_figures)
        last = records[-1]
        reached = [r.round for r in records if target is not None and r.accuracy_mean >= target]
        return ComparedRun(
            *place,
            lam,
            directory,
            None,
            own=last.accuracy_mean,
            own_std=last.accuracy_std,
            prototype=last.prototype_accuracy_mean,
            prototype_std=last.prototype_accuracy_std,
            all_classes=last.accuracy_all,
            held=last.accuracy_held,
            unheld=last.accuracy_unheld,
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
    lam: float | None
    runs: int
    diverged: int
    own: Spread | None
    own_std: float | None  # over clients, mean over seeds
    prototype: Spread | None
    prototype_std: float | None
    all_classes: Spread | None
    held: Spread | None
    unheld: Spread | None
    reached: int  # how many runs reach the target
    rounds_to_target: float | None  # mean over the runs that reach it
    parameters: float | None
    bytes: float | None
    collapsed: float | None
    seconds: float | None

    @staticmethod
    def of(runs: Sequence[ComparedRun]) -> ComparedCell:
        """Summarise the runs of one method in one setting."""
        rounds = [run.rounds_to_target for run in runs if run.rounds_to_target is not None]
        return ComparedCell(
            setting=runs[0].setting,
            method=runs[0].method,
            lam=runs[0].lam,
            runs=len(runs),
            diverged=sum(run.diverged is not None for run in runs),
            own=spread([run.own for run in runs]),
            own_std=_mean([run.own_std for run in runs]),
            prototype=spread([run.prototype for run in runs]),
            prototype_std=_mean([run.prototype_std for run in runs]),
            all_classes=spread([run.all_classes for run in runs]),
            held=spread([run.held for run in runs]),
            unheld=spread([run.unheld for run in runs]),
            reached=len(rounds),
            rounds_to_target=_mean(rounds),
            parameters=_mean([run.parameters for run in runs]),
            bytes=_mean([run.bytes for run in runs]),
            collapsed=_mean([run.collapsed for run in runs]),
            seconds=_mean([run.seconds for run in runs]),
        )


@dataclass(frozen=True)
class PairedDifference:
    """A method minus another, in points, in one setting or in the mean over all settings."""

    setting: str
    method: str
    other: str
    own: Difference | None
    prototype: Difference | None
    all_classes: Difference | None
    held: Difference | None
    unheld: Difference | None


@dataclass(frozen=True)
class ComparisonFindings:
    """The results of a comparison: its runs, its cells over seeds, and the paired differences."""

    comparison: Comparison
    runs: tuple[ComparedRun, ...]
    cells: tuple[ComparedCell, ...]
    pairs: tuple[PairedDifference, ...]
    records: Mapping[Place, Sequence[RoundRecord]]  # of the runs that did not diverge

    @staticmethod
    def of(comparison: Comparison, ended: Mapping[str, EndedRun]) -> ComparisonFindings:
        """Collect the results of the runs, which are given by experiment hash."""
        ends = {
            place: ended[experiment.hash()] for place, experiment in comparison.experiments.items()
        }
        records = {place: end.records() for place, end in ends.items() if end.diverged is None}
        runs = [
            ComparedRun.of(
                place,
                lam_of(comparison.experiments[place]),
                end,
                records.get(place, ()),
                comparison.target,
            )
            for place, end in ends.items()
        ]
        # A control that is impossible in a setting has no runs there, and no cell.
        cells = [
            ComparedCell.of([run for run in runs if (run.setting, run.method) == cell])
            for cell in dict.fromkeys((run.setting, run.method) for run in runs)
        ]
        pairs = _pairs(comparison, runs)
        return ComparisonFindings(comparison, tuple(runs), tuple(cells), tuple(pairs), records)

    def table(self) -> dict[str, Any]:
        """Return everything as plain values, as table.json has it."""
        return {
            "name": self.comparison.name,
            "seeds": list(self.comparison.seeds),
            "target": self.comparison.target,
            "left_out": list(self.comparison.left_out),
            "tuning": [asdict(choice) for choice in self.comparison.chosen],
            "runs": [asdict(run) for run in self.runs],
            "cells": [asdict(cell) for cell in self.cells],
            "pairs": [asdict(pair) for pair in self.pairs],
        }


def _pairs(comparison: Comparison, runs: Sequence[ComparedRun]) -> list[PairedDifference]:
    """Compare every method with every other, in each setting and, if there are several, in all."""
    values = {
        (run.setting, run.method, run.seed): MeanAccuracies(
            run.own, run.prototype, run.all_classes, run.held, run.unheld
        )
        for run in runs
    }
    groups: dict[str, tuple[str, ...]] = {setting: (setting,) for setting in comparison.settings}
    if len(comparison.settings) > 1:
        groups[ALL] = comparison.settings
    pairs = []
    for group, settings in groups.items():
        by_method = {
            method: [_over(values, settings, method, seed) for seed in comparison.seeds]
            for method in comparison.methods
            if all((setting, method, comparison.seeds[0]) in values for setting in settings)
        }
        # Both directions: a reader looks a pair up either way.
        for method, other in permutations(by_method, 2):
            # Seeds × accuracies, turned to have the seeds of each accuracy together.
            ones = zip(*by_method[method], strict=True)
            others = zip(*by_method[other], strict=True)
            differences = map(difference, ones, others)
            pairs.append(PairedDifference(group, method, other, *differences))
    return pairs


def _over(
    values: Mapping[Place, MeanAccuracies], settings: Sequence[str], method: str, seed: int
) -> MeanAccuracies:
    """Return a seed's accuracies, each the mean over the settings if all of them have it."""
    places = [values[setting, method, seed] for setting in settings]
    return MeanAccuracies(*map(_complete_mean, zip(*places, strict=True)))


def _complete_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return None
    return fmean(present)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are present."""
    present = [value for value in values if value is not None]
    if present:
        return fmean(present)
    return None
