"""Grids of runs: every combination of the labels of some axes, with every seed.

    only = {setting = ["3 ± 2"]}          optional: of an axis, these labels
    [experiment]                          what all runs have in common: any keys of an experiment but name and seed
    rounds = 100
    [axes.setting."3 ± 2"]                an axis, a label of it, and what it changes of the experiment
    partition = {ways = 3, spread = 2}
    [axes.method.fedproto]
    method = {name = "fedproto"}
    [[where]]                             optional: laid over last where all the labels named here meet
    method = "fedproto"                   a label, or a list of them
    setting = "3 ± 2"
    change = {method = {lam = 0.1}}       or skip = true: such runs are left out; or seeds = 1: the first so many alone

All runs have one name, so a run that several recipes need is run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedrfq.errors import UserError, nearest
from fedrfq.experiment import Experiment, known
from fedrfq.files.toml import Table
from fedrfq.studies import study_file
from fedrfq.studies.recipe import Recipe

KEYS = ("only", "experiment", "axes", "where")
NAME = "reproduced"
Labels = tuple[str, ...]  # one of each axis, in the order of the axes


@dataclass(frozen=True)
class Axes:
    labels: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, frozenset[str]]  # by `only`
    experiments: Mapping[tuple[Labels, int], Experiment]  # by labels and seed

    @staticmethod
    def of(recipe: Recipe) -> Axes:
        table = recipe.table
        given = study_file.section(table, "axes")
        axes = {axis: study_file.labels(given, axis) for axis in given}
        only = study_file.section(table, "only")
        known(only, list(axes), "only")
        kept = {axis: _kept(axis, labels, only) for axis, labels in axes.items()}
        rules = _rules(table.get("where", []), axes)
        common = study_file.section(table, "experiment")
        experiments = {
            (labels, seed): study_file.experiment(
                _words(kept, labels), NAME, seed, [common, *layers]
            )
            for labels, layers, seeds in _combined(axes, kept, rules)
            for seed in recipe.seeds[:seeds]
        }
        if not experiments:
            raise UserError(f"{recipe.name}: no combination of labels is left: see only and where")
        left_out = {axis: frozenset(labels) - set(kept[axis]) for axis, labels in axes.items()}
        return Axes(kept, left_out, experiments)

    def at(self, axis: str) -> int:
        """The axis's place among the labels."""
        if axis not in self.labels:
            raise UserError(
                f"there is no axis '{axis}'{nearest(axis, list(self.labels))}: {', '.join(self.labels)}"
            )
        return list(self.labels).index(axis)

    def combinations(self) -> list[Labels]:
        return list(dict.fromkeys(labels for labels, _ in self.experiments))


def _kept(axis: str, labels: Mapping[str, Table], only: Mapping[str, Any]) -> tuple[str, ...]:
    wanted = only.get(axis, list(labels))
    if (
        not isinstance(wanted, list)
        or not wanted
        or any(label not in list(labels) for label in wanted)
    ):
        raise UserError(f"only.{axis} is a list of labels ({', '.join(labels)}), not {wanted!r}")
    return tuple(label for label in labels if label in wanted)


def _rules(given: Any, axes: Mapping[str, Mapping[str, Table]]) -> list[Table]:
    """The where tables, checked: of every axis they name a list of labels."""
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise UserError(
            "where is a list of tables: [[where]], labels of axes, and change = {…} or skip = true"
        )
    rules = []
    for rule in given:
        named = {
            axis: labels if isinstance(labels, list) else [labels]
            for axis, labels in rule.items()
            if axis in axes
        }
        for axis, labels in named.items():
            for label in labels:
                if label not in list(axes[axis]):
                    raise UserError(
                        f"where: {axis} has no label {label!r}{nearest(str(label), list(axes[axis]))}"
                    )
        rest = {key: value for key, value in rule.items() if key not in axes}
        if not _is_rule(rest):
            raise UserError(
                f"where has labels of axes ({', '.join(axes)}), and change, skip or seeds, not {rest}"
            )
        rules.append({"labels": named, **rest})
    return rules


def _is_rule(rest: Mapping[str, Any]) -> bool:
    """One of the three things a rule can say, with a value that it can have."""
    kinds = {"change": dict, "skip": bool, "seeds": int}
    return (
        len(rest) == 1
        and all(type(value) is kinds.get(key) for key, value in rest.items())
        and rest.get("seeds", 1) >= 1
    )


def _combined(
    axes: Mapping[str, Mapping[str, Table]],
    kept: Mapping[str, tuple[str, ...]],
    rules: Sequence[Table],
) -> Iterator[tuple[Labels, list[Table], int | None]]:
    """Every combination that is not skipped, with what it changes, layer after layer, and how many seeds it has at most."""
    for labels in product(*kept.values()):
        here = dict(zip(kept, labels, strict=True))
        met = [
            rule
            for rule in rules
            if all(here[axis] in wanted for axis, wanted in rule["labels"].items())
        ]
        if not any(rule.get("skip") for rule in met):
            changes = [rule["change"] for rule in met if "change" in rule]
            seeds = min((rule["seeds"] for rule in met if "seeds" in rule), default=None)
            yield labels, [axes[axis][label] for axis, label in here.items()] + changes, seeds


def _words(axes: Mapping[str, object], labels: Labels) -> str:
    return ", ".join(f"{axis} '{label}'" for axis, label in zip(axes, labels, strict=True))
