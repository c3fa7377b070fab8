"""What all study files share: seeds, the experiment common to all runs, and labels with changes.

name = "mine"            the folder under --out; the file's own name if not given
seeds = [0, 1, 2]        every combination is run with each of them
methods = ["local"]      a list of names, or a section for each label with what it changes:
[methods."λ = 0.5"]
method = {name = "fedrfq", lam = 0.5}
[experiment]             any keys of an experiment but name and seed
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import Experiment, check_keys, from_table, without_replaced_kinds
from fedrfq.files import toml
from fedrfq.files.toml import Table

_SET_AT_TOP = {"name": "name", "seed": "seeds"}  # keys of an experiment that a study sets itself


def read(path: Path, keys: Sequence[str], example: str) -> Table:
    """Read a study file, check its top-level keys against `keys`, and fill in `name`."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; start from a copy of {example}")
    table = toml.read(path)
    check_keys(table, keys, "")
    # The name becomes a folder, so characters that a folder cannot have are replaced.
    table.setdefault("name", re.sub(r"[^\w .-]", "-", path.stem))
    if not isinstance(table["name"], str):
        raise UserError(
            f"name must be the name of a folder under --out, in quotes, not {table['name']!r}"
        )
    return table


def section(table: Mapping[str, Any], key: str) -> Table:
    """Return the section `key` of a table, empty if it is not there."""
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise UserError(f"{key} must be a section, [{key}], not the value {value!r}")
    return dict(value)


def whole_numbers(
    table: Mapping[str, Any], key: str, minimum: int, example: str
) -> tuple[int, ...]:
    """Return the non-empty list of distinct integers of at least `minimum` under `key`."""
    values = table.get(key)
    # type() and not isinstance(): True is an int too, and not a number of anything.
    if (
        not isinstance(values, list)
        or not values
        or any(type(value) is not int or value < minimum for value in values)
    ):
        raise UserError(
            f"{key} must be a list of integers of at least {minimum}, such as {example}, "
            f"not {values!r}"
        )
    return tuple(_distinct(values, key))


def labels(table: Mapping[str, Any], key: str, choices: Sequence[str] = ()) -> dict[str, Table]:
    """Return the labels under `key`, each with what it changes of the experiment.

    The file gives either sections, one for each label, or a list of names out of `choices`, which
    change nothing themselves.
    """
    given = table.get(key)
    if isinstance(given, Mapping) and given:
        return {_one_line(label, key): section(given, label) for label in given}
    if not isinstance(given, list) or not given:
        alternative = ""
        if choices:
            alternative = f"a list of names ({', '.join(choices)}) or "
        raise UserError(
            f"{key} must be {alternative}sections [{key}.LABEL], at least one, not {given!r}"
        )
    for name in given:
        if name not in choices:
            raise UserError(
                f"{key} must name some of {', '.join(choices)}, not {name!r}"
                f"{did_you_mean(str(name), choices)}"
            )
    return {name: {} for name in _distinct(given, key)}


def named(label: str, changes: Table, choices: Sequence[str]) -> Table:
    """Return a section's options, with `name` filled in where the label itself is a known name."""
    if label in choices:
        return {"name": label, **changes}
    return dict(changes)


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


def _distinct(values: list[Any], key: str) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{key} has {value!r} more than once; remove the repetition")
    return values


def _one_line(label: str, key: str) -> str:
    if not label.strip() or "\n" in label:
        raise UserError(f"{key}: a label must be one line of text, not {label!r}")
    return label
