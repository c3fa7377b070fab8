"""What the files of grids have in common: seeds, the experiment that all runs share, and labels with what each changes.

name = "mine"            the folder under --out; the file's own name if not given
seeds = [0, 1, 2]        every combination is run with each
methods = ["local"]      a list of names, or a table of labels, each with what it changes:
[methods."λ = 0.5"]
method = {name = "fedrfq", lam = 0.5}
[experiment]             any keys of an experiment but name and seed
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError, nearest
from fedrfq.experiment import Experiment, from_table, known, switched
from fedrfq.files import toml
from fedrfq.files.toml import Table

_GIVEN_ELSEWHERE = {"name": "name at the top of the file", "seed": "seeds at the top of the file"}


def read(path: Path, keys: Sequence[str], example: str) -> Table:
    """The file's table, its top-level keys checked; `name` is filled in."""
    if not path.is_file():
        raise UserError(f"there is no file {path}: {example} is one to start from")
    table = toml.read(path)
    known(table, keys, "")
    table.setdefault("name", re.sub(r"[^\w .-]", "-", path.stem))
    if not isinstance(table["name"], str):
        raise UserError(f"name is the folder's under --out, in quotes, not {table['name']!r}")
    return table


def section(table: Mapping[str, Any], key: str) -> Table:
    found = table.get(key, {})
    if not isinstance(found, Mapping):
        raise UserError(f"{key} is a section: [{key}] and what is in it, not the value {found!r}")
    return dict(found)


def whole_numbers(table: Mapping[str, Any], key: str, least: int, example: str) -> tuple[int, ...]:
    """A list of distinct whole numbers, one at least."""
    values = table.get(key)
    if (
        not isinstance(values, list)
        or not values
        or any(type(value) is not int or value < least for value in values)
    ):
        raise UserError(
            f"{key} is a list of whole numbers from {least} on, such as {example}, not {values!r}"
        )
    return tuple(_distinct(values, key))


def labels(table: Mapping[str, Any], key: str, choices: Sequence[str] = ()) -> dict[str, Table]:
    """Each label with what it changes: of a list, the names of `choices` with nothing; of a table, its sections."""
    given = table.get(key)
    if isinstance(given, Mapping) and given:
        return {_plain(label, key): section(given, label) for label in given}
    if not isinstance(given, list) or not given:
        if choices:
            form = f"a list of names ({', '.join(choices)}) or "
        else:
            form = ""
        raise UserError(f"{key} is {form}sections [{key}.LABEL], one at least, not {given!r}")
    for name in given:
        if name not in choices:
            raise UserError(
                f"{key}: one of {', '.join(choices)}, not {name!r}{nearest(str(name), choices)}"
            )
    return {name: {} for name in _distinct(given, key)}


def named(label: str, changes: Table, choices: Sequence[str]) -> Table:
    """The changes of a section that names its kind; a label that is such a name says so itself."""
    if label in choices:
        return {"name": label, **changes}
    return dict(changes)


def experiment(where: str, name: str, seed: int, layers: Sequence[Table]) -> Experiment:
    """The first layer with the others laid over it in turn; an error says which combination it is of."""
    table: Table = {}
    try:
        for layer in layers:
            for key in set(layer) & set(_GIVEN_ELSEWHERE):
                raise UserError(f"{key} is not set here but by {_GIVEN_ELSEWHERE[key]}")
            table = toml.merge(switched(table, layer), layer)
        return from_table({**table, "name": name, "seed": seed})
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _distinct(values: list[Any], key: str) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{key} has {value!r} more than once: remove one")
    return values


def _plain(label: str, key: str) -> str:
    if not label.strip() or "\n" in label:
        raise UserError(f"{key}: a label is a line of text, not {label!r}")
    return label
