"""Axes: a grid has one run for every combination of its axes' labels, with every seed.

    only = {setting = ["3 ± 2"]}     optional: restricts an axis to these labels
    [experiment]                     shared by all runs: any keys of an experiment but name and seed
    rounds = 100
    [axes.setting."3 ± 2"]           an axis, one of its labels, and what it changes
    partition = {ways = 3, spread = 2}
    [axes.method."λ = 0.1"]          an axis may have the name of a section, such as method; then …
    method = {name = "fedproto", lam = 0.1}
    [axes.method.fedproto]           … a label that is one of its kinds chooses that kind,
    [axes.data.femnist]              … or that dataset,
    [axes]
    detector = ["none", "bft"]       … and a list of kinds is enough
    rounds = [10, 20]                so is a list of values of a key of the experiment
    attackers = [2, 4]               how many clients attack: attack.clients
    [[where]]                        optional: a rule for runs that have all the labels it names
    method = "fedproto"              a label, or a list of labels
    setting = "3 ± 2"
    change = {method = {lam = 0.1}}  applied last; or skip = true to leave these runs out,
                                     or seeds = 1 to run only that many of the seeds

Combinations whose experiments are equal, such as 3 ± 3 and 4 ± 2 classes, have one run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedrfq.data import DATASETS
from fedrfq.errors import UserError, did_you_mean, near_or_own
from fedrfq.experiment import Experiment, check_keys, from_table, without_replaced_kinds
from fedrfq.experiment.kinds import KINDS, SECTIONS
from fedrfq.files import toml
from fedrfq.files.toml import Table
from fedrfq.studies.equality import run_key
from fedrfq.studies.study import Study, check_distinct, section

KEYS = ("only", "experiment", "axes", "where")
Labels = tuple[str, ...]  # one label of each axis, in the order of the axes
Place = tuple[Labels, int]  # labels and a seed
_RULE_TYPES = {"change": dict, "skip": bool, "seeds": int}
_SET_AT_TOP = {"name": "name", "seed": "seeds"}  # keys of an experiment that a study sets itself
# What a list of values sets, where it is not the `name` of the section that the axis is called by.
_LISTED_KEYS = {"attackers": ("attack", "clients")}


@dataclass(frozen=True)
class Axes:
    """A grid: its axes with their labels, and the experiment of every combination and seed."""

    labels: Mapping[str, tuple[str, ...]]
    hidden: Mapping[str, frozenset[str]]  # the labels that `only` excludes
    seeds: tuple[int, ...]
    experiments: Mapping[Place, Experiment]
    layers: Mapping[Labels, Sequence[Table]]  # what a combination lays over each other
    impossible: tuple[str, ...] = ()  # combinations that were left out, and why

    @staticmethod
    def of(study: Study, optional: Collection[str] = ()) -> Axes:
        """Build the grid that a study describes.

        Combinations with one of the `optional` labels are left out where they cannot be run.
        """
        table = study.table
        given = section(table, "axes")
        axes = {axis: read_labels(given, axis) for axis in given}
        only = section(table, "only")
        check_keys(only, list(axes), "only")
        kept = {axis: _kept(axis, labels, only) for axis, labels in axes.items()}
        rules = _rules(table.get("where", []), axes)
        common = section(table, "experiment")
        experiments: dict[Place, Experiment] = {}
        first: dict[str, Experiment] = {}  # of those that are equal
        all_layers = {}
        impossible = []
        for labels, changes, seeds in _combined(axes, kept, rules):
            layers = [common, *changes]
            try:
                for seed in study.seeds[:seeds]:
                    one = experiment(_in_words(kept, labels), study.runs, seed, layers)
                    experiments[labels, seed] = first.setdefault(run_key(one), one)
            except UserError as error:
                if not set(labels) & set(optional):
                    raise
                impossible.append(str(error))
                continue
            all_layers[labels] = layers
        if not experiments:
            raise UserError(
                f"{study.name}: no combination of labels is left to run; relax `only` or `where`"
            )
        hidden = {axis: frozenset(labels) - set(kept[axis]) for axis, labels in axes.items()}
        return Axes(kept, hidden, study.seeds, experiments, all_layers, tuple(impossible))

    def at(self, axis: str) -> int:
        """Return the position of an axis within a combination of labels."""
        if axis not in self.labels:
            axes = list(self.labels)
            raise UserError(
                f"there is no axis '{axis}'{did_you_mean(axis, axes)}; "
                f"the axes are {', '.join(axes)}"
            )
        return list(self.labels).index(axis)

    def named(self, labels: Labels) -> dict[str, str]:
        """Return a combination's labels by axis."""
        return dict(zip(self.labels, labels, strict=True))

    def combinations(self) -> list[Labels]:
        """Return the combinations that have at least one run, in order."""
        return list(self.layers)

    def others(self, axis: str) -> list[Labels]:
        """Return the combinations of the labels of all axes but one, in order."""
        at = self.at(axis)
        return list(dict.fromkeys(without(labels, at) for labels in self.combinations()))

    def equal(self, axis: str) -> dict[Labels, Labels]:
        """Return those of `others` whose runs are all those of an earlier one, and that one."""
        at = self.at(axis)
        first: dict[frozenset[tuple[str, int, str]], Labels] = {}
        equal = {}
        for rest in self.others(axis):
            runs = frozenset(
                (labels[at], seed, one.hash())
                for (labels, seed), one in self.experiments.items()
                if without(labels, at) == rest
            )
            if first.setdefault(runs, rest) != rest:
                equal[rest] = first[runs]
        return equal

    def with_experiments(self, changed: Mapping[Place, Experiment]) -> Axes:
        """Return the grid with other experiments in some places."""
        return replace(self, experiments={**self.experiments, **changed})


def without(labels: Labels, at: int) -> Labels:
    """Return a combination less the label of one axis."""
    return (*labels[:at], *labels[at + 1 :])


def experiment(where: str, name: str, seed: int, layers: Sequence[Table]) -> Experiment:
    """Lay each layer over those before it and return the experiment; errors begin with `where`."""
    table: Table = {}
    try:
        for layer in layers:
            for key in set(layer) & set(_SET_AT_TOP):
                raise UserError(
                    f"{key} cannot be set here; set {_SET_AT_TOP[key]} at the top of the file"
                )
            # A layer that chooses another kind (of method, say) drops the options of the old one.
            table = toml.merge(without_replaced_kinds(table, layer), layer)
        return from_table({**table, "name": name, "seed": seed})
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def read_labels(axes: Mapping[str, Any], axis: str) -> dict[str, Table]:
    """Return an axis's labels, each with what it changes of the experiment."""
    given = axes.get(axis)
    kinds = list(KINDS.get(axis, ()))
    if isinstance(given, Mapping) and given:
        # A dataset may also be any file's, so only labels are looked up among those with names.
        names = [*DATASETS] if axis == "data" else kinds
        return {_one_line(label, axis): _changes(given, label, axis, names) for label in given}
    if axis not in axes:
        remedy = f"write sections [axes.{axis}.LABEL], or a list of values"
        for near in axes:
            if did_you_mean(near, [axis]):
                remedy = f"write axes.{axis} for axes.{near}"
        raise UserError(
            f"axes.{axis} is missing; the axes are {', '.join(axes) or 'none'}: {remedy}"
        )
    if not isinstance(given, list) or not given:
        raise UserError(
            f"axes.{axis} must be sections [axes.{axis}.LABEL] or a list of values, "
            f"at least one, not {given!r}"
        )
    check_distinct([str(value) for value in given], f"axes.{axis}")
    for name in given:
        if kinds and name not in kinds:
            # All kinds but a committee may be somebody's own.
            nearest = did_you_mean if axis == "committee" else near_or_own
            near = nearest(str(name), kinds)
            raise UserError(f"axes.{axis} must name some of {', '.join(kinds)}, not {name!r}{near}")
    if axis in _LISTED_KEYS or axis in SECTIONS:
        above, key = _LISTED_KEYS.get(axis, (axis, "name"))
        return {str(value): {above: {key: value}} for value in given}
    return {str(value): {axis: value} for value in given}


def _changes(given: Mapping[str, Any], label: str, axis: str, names: Sequence[str]) -> Table:
    """Return what a label changes, which includes the name of the kind or of the dataset it is."""
    changes = section(given, label)
    if label in names:
        changes[axis] = {"name": label, **section(changes, axis)}
    return changes


def check_named(table: Mapping[str, Any], axis: str) -> None:
    """Refuse an axis that is not there, or that has a label which chooses no kind."""
    kinds = list(KINDS[axis])
    for label, changes in read_labels(section(table, "axes"), axis).items():
        if "name" not in section(changes, axis):
            raise UserError(
                f"axes.{axis}.{label}: {axis}.name is missing; it must be one of "
                f"{', '.join(kinds)}{did_you_mean(label, kinds)}"
            )


def _one_line(label: str, axis: str) -> str:
    if not label.strip() or "\n" in label:
        raise UserError(f"axes.{axis}: a label must be one line of text, not {label!r}")
    return label


def _kept(axis: str, labels: Mapping[str, Table], only: Mapping[str, Any]) -> tuple[str, ...]:
    given = only.get(axis, list(labels))
    wanted = _as_list(given)
    if not isinstance(given, list) or not wanted or not set(wanted) <= set(labels):
        raise UserError(
            f"only.{axis} must be a list of labels ({', '.join(labels)}), not {given!r}"
        )
    return tuple(label for label in labels if label in wanted)


def _rules(given: Any, axes: Mapping[str, Mapping[str, Table]]) -> list[Table]:
    """Check the [[where]] tables and give each the labels it names, as lists, by axis."""
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise UserError(
            "where must be a list of tables: write [[where]], then labels of axes, and "
            "change = {…}, skip = true or seeds = N"
        )
    return [_rule(rule, axes) for rule in given]


def _rule(given: Mapping[str, Any], axes: Mapping[str, Mapping[str, Table]]) -> Table:
    labels = {axis: _as_list(value) for axis, value in given.items() if axis in axes}
    for axis, wanted in labels.items():
        choices = list(axes[axis])
        for label in wanted:
            if label not in choices:
                raise UserError(
                    f"where: {axis} has no label {label!r}{did_you_mean(label, choices)}"
                )
    action = {key: value for key, value in given.items() if key not in axes}
    if not _is_action(action):
        raise UserError(
            f"where: besides labels of axes ({', '.join(axes)}), a rule has exactly one of "
            f"change = {{…}}, skip = true or seeds = N, not {action}"
        )
    return {"labels": labels, **action}


def _as_list(value: Any) -> list[str]:
    """Return one label or several as a list; numbers may be written as numbers."""
    if isinstance(value, list):
        return [str(label) for label in value]
    return [str(value)]


def _is_action(action: Mapping[str, Any]) -> bool:
    """Return whether this is one of the three actions of a rule, with a valid value."""
    return (
        len(action) == 1
        and all(type(value) is _RULE_TYPES.get(key) for key, value in action.items())
        and action.get("seeds", 1) >= 1
    )


def _combined(
    axes: Mapping[str, Mapping[str, Table]],
    kept: Mapping[str, tuple[str, ...]],
    rules: Sequence[Table],
) -> Iterator[tuple[Labels, list[Table], int | None]]:
    """Yield each combination that is not skipped, its changes in order, and its limit on seeds."""
    for labels in product(*kept.values()):
        here = dict(zip(kept, labels, strict=True))
        matching = [
            rule
            for rule in rules
            if all(here[axis] in wanted for axis, wanted in rule["labels"].items())
        ]
        if any(rule.get("skip") for rule in matching):
            continue
        changes = [axes[axis][label] for axis, label in here.items()]
        changes += [rule["change"] for rule in matching if "change" in rule]
        seeds = min((rule["seeds"] for rule in matching if "seeds" in rule), default=None)
        yield labels, changes, seeds


def _in_words(axes: Mapping[str, object], labels: Labels) -> str:
    pairs = zip(axes, labels, strict=True)
    return ", ".join(f"{axis} '{label}'" for axis, label in pairs if label)
