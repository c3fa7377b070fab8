"""Axes: a grid has one run for every combination of its axes' labels, with every seed.

    only = {setting = ["3 ± 2"]}     optional: restricts an axis to these labels
    [experiment]                     shared by all runs: any keys of an experiment but name and seed
    rounds = 100
    [axes.setting."3 ± 2"]           an axis, one of its labels, and what it changes
    partition = {ways = 3, spread = 2}
    [axes.method.fedproto]
    method = {name = "fedproto"}
    [[where]]                        optional: a rule for runs that have all the labels it names
    method = "fedproto"              a label, or a list of labels
    setting = "3 ± 2"
    change = {method = {lam = 0.1}}  applied last; or skip = true to leave these runs out,
                                     or seeds = 1 to run only that many of the seeds

All runs share one name, so a run that several recipes need is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import Experiment, check_keys
from fedrfq.files.toml import Table
from fedrfq.studies import study_file
from fedrfq.studies.recipe import Recipe

KEYS = ("only", "experiment", "axes", "where")
NAME = "reproduced"
Labels = tuple[str, ...]  # one label of each axis, in the order of the axes
_RULE_TYPES = {"change": dict, "skip": bool, "seeds": int}


@dataclass(frozen=True)
class Axes:
    """A grid: its axes with their labels, and the experiment of every combination and seed."""

    labels: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, frozenset[str]]  # the labels that `only` excludes
    experiments: Mapping[tuple[Labels, int], Experiment]  # by labels and seed

    @staticmethod
    def of(recipe: Recipe) -> Axes:
        """Build the grid that a recipe describes."""
        table = recipe.table
        given = study_file.section(table, "axes")
        axes = {axis: study_file.labels(given, axis) for axis in given}
        only = study_file.section(table, "only")
        check_keys(only, list(axes), "only")
        kept = {axis: _kept(axis, labels, only) for axis, labels in axes.items()}
        rules = _rules(table.get("where", []), axes)
        common = study_file.section(table, "experiment")
        experiments = {
            (labels, seed): study_file.experiment(
                _in_words(kept, labels), NAME, seed, [common, *layers]
            )
            for labels, layers, seeds in _combined(axes, kept, rules)
            for seed in recipe.seeds[:seeds]
        }
        if not experiments:
            raise UserError(
                f"{recipe.name}: no combination of labels is left to run; relax `only` or `where`"
            )
        left_out = {axis: frozenset(labels) - set(kept[axis]) for axis, labels in axes.items()}
        return Axes(kept, left_out, experiments)

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
        return list(dict.fromkeys(labels for labels, _ in self.experiments))


def _kept(axis: str, labels: Mapping[str, Table], only: Mapping[str, Any]) -> tuple[str, ...]:
    # Membership is tested on a list: a value in the file may be a table, which cannot be hashed.
    choices = list(labels)
    wanted = only.get(axis, choices)
    if not isinstance(wanted, list) or not wanted or any(name not in choices for name in wanted):
        raise UserError(
            f"only.{axis} must be a list of labels ({', '.join(choices)}), not {wanted!r}"
        )
    return tuple(label for label in choices if label in wanted)


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
                    f"where: {axis} has no label {label!r}{did_you_mean(str(label), choices)}"
                )
    action = {key: value for key, value in given.items() if key not in axes}
    if not _is_action(action):
        raise UserError(
            f"where: besides labels of axes ({', '.join(axes)}), a rule has exactly one of "
            f"change = {{…}}, skip = true or seeds = N, not {action}"
        )
    return {"labels": labels, **action}


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value]


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
    return ", ".join(f"{axis} '{label}'" for axis, label in zip(axes, labels, strict=True))
