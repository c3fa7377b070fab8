"""Experiments from TOML tables: a file, `--set` assignments, and the defaults that suit the data.

Settings come from `--set`, then the file, then what suits the data, then the dataclasses' defaults.
An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedrfq import plugins
from fedrfq.data import CONTRACT, DATASETS, at_path, is_given, is_on_hub
from fedrfq.engine.program import TrainingOptions
from fedrfq.errors import UserError, check_one_of, did_you_mean
from fedrfq.experiment.experiment import Cohort, Data, Experiment
from fedrfq.experiment.kinds import DEFAULT_KINDS, KINDS, SECTIONS, name_of
from fedrfq.files import toml
from fedrfq.files.options import check_range, settable
from fedrfq.files.toml import Table
from fedrfq.methods import METHODS
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.pooling import Pool

T = TypeVar("T")
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
}


def load(path: Path | str | None = None, sets: Sequence[str] = (), **top: Any) -> Experiment:
    """Return the experiment of a file, or the default one, with changes applied.

    `sets` are assignments as `--set` takes them; `top` are top-level keys, ignored where None.
    """
    return from_table(read_table(path, sets, **top))


def read_table(path: Path | str | None, sets: Sequence[str] = (), **top: Any) -> Table:
    """Return the settings of a file, or none, with changes applied, as `load` takes them."""
    changes: Table = {}
    for assignment in sets:
        changes = toml.assign(changes, assignment)
    changes = toml.merge(changes, {key: value for key, value in top.items() if value is not None})
    if path is None:
        return changes
    table = toml.read(Path(path))
    # A new run may be made with a newer version of the plugins that the file was written with.
    recorded = table.pop("plugins", [])
    plugins.load_installed()
    plugins.recall(recorded, exact=False)
    return toml.merge(without_replaced_kinds(table, changes), changes)


def without_replaced_kinds(table: Table, over: Mapping[str, Any]) -> Table:
    """Return the file's table without the settings of kinds that `over` replaces by others."""
    for key, kinds in KINDS.items():
        section = _section(table, key)
        before = section.get("name", DEFAULT_KINDS[key])
        chosen = before
        if isinstance(over.get(key), Mapping):
            chosen = over[key].get("name", before)
        # The names may be of any type here (lists are not hashable); they are checked later.
        if chosen == before or chosen not in list(kinds) or before not in list(kinds):
            continue
        table = {**table, key: _settings_kept(section, kinds[before], kinds[chosen])}
        if key == "method":
            _drop_what_followed_the_method(table, before, chosen)
    return table


def _settings_kept(section: Table, before: type[Any], chosen: type[Any]) -> Table:
    """Return a section less the old kind's defaults, and less what the new kind does not know."""
    defaults = {field.name: field.default for field in fields(before)}
    unchanged = {
        name for name, value in section.items() if name in defaults and defaults[name] == value
    }
    unknown = set(defaults) - {field.name for field in settable(chosen)}
    dropped = unchanged | unknown
    return {name: value for name, value in section.items() if name not in dropped}


def _drop_what_followed_the_method(table: Table, before: str, chosen: str) -> None:
    """Remove the pool and the name where they come from the method that is replaced."""
    if METHODS[before].pool != METHODS[chosen].pool:
        table.pop("pool", None)
    if table.get("name") == _automatic_name(_section(table, "data"), before):
        table.pop("name")


def _automatic_name(data: Mapping[str, Any], method: str) -> str:
    """Return the name of a run that was given none."""
    # What stands before a colon says where the data come from, not what they are.
    stem = Path(str(data.get("name", Data.name)).rpartition(":")[2]).stem
    plain = re.sub(r"[^\w.-]", "-", stem).lstrip(".-")
    return f"{plain or 'own'}-{method}"


def with_data(table: Table, name: str) -> Table:
    """Return the table with other data, and without a name that came from the data before."""
    data = _section(table, "data")
    method = _section(table, "method").get("name", DEFAULT_KINDS["method"])
    kept = dict(table)
    if kept.get("name") == _automatic_name(data, str(method)):
        del kept["name"]
    return {**kept, "data": {**data, "name": name}}


def from_table(given: Mapping[str, Any], exact: bool = True) -> Experiment:
    """Return the experiment a table describes; what suits its data fills what it leaves open.

    The plugins that it records must be known here; with `exact`, in the very version.
    """
    plugins.load_installed()
    plugins.recall(given.get("plugins", []), exact)
    given = {key: value for key, value in given.items() if key != "plugins"}
    check_keys(given, [field.name for field in fields(Experiment)], "")
    data = _data_section(given)
    suits: Mapping[str, Any] = {}
    if data["name"] in DATASETS:
        suits = DATASETS[data["name"]].settings
    method = _kind("method", given, suits)
    sections: Table = {
        "data": _build(Data, data, "data", suits.get("data", {})),
        "train": _build(TrainingOptions, _section(given, "train"), "train", suits.get("train", {})),
        "partition": _kind("partition", given, suits),
        "model": _kind("model", given, suits),
        "cohorts": _cohorts(given, suits),
        "method": method,
        "pool": _build(Pool, _section(given, "pool"), "pool", method.pool),
        "attack": _kind("attack", given, suits),
        "detector": _kind("detector", given, suits),
        "committee": _kind("committee", given, suits),
        "public": _kind("public", given, suits),
        "privacy": _build(Privacy, _section(given, "privacy"), "privacy", {}),
    }
    top = {key: value for key, value in given.items() if key not in SECTIONS}
    if "track" in top:
        top["track"] = _joined_names(top["track"])
    name = _automatic_name(data, name_of(METHODS, method))
    return _build(Experiment, top, "", {"name": name, **suits, **sections})


def _joined_names(value: Any) -> Any:
    """Return a list of names as one text, separated by commas; anything else as it is."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return ", ".join(value)
    return value


def data_name(table: Mapping[str, Any]) -> str:
    """Return the name or path of the data that a table of settings asks for."""
    return str(_data_section(table)["name"])


def _data_section(given: Mapping[str, Any]) -> Table:
    data = {"name": Data.name, **_section(given, "data")}
    _typed(data["name"], str, "data.name")
    elsewhere = is_given(data["name"]) or is_on_hub(data["name"])
    is_path = data["name"] not in (*DATASETS, CONTRACT) and not elsewhere
    if is_path and (path := at_path(data["name"])):
        # An absolute path, so that the run can be resumed from anywhere.
        data["name"] = str(path.resolve())
    return data


def _section(given: Mapping[str, Any], key: str) -> Table:
    section = given.get(key, {})
    if not isinstance(section, Mapping):
        raise UserError(
            f"{key} must be a section, not the value {section!r}: "
            f"write [{key}], or --set {key}.name=…"
        )
    return dict(section)


def _kind(key: str, given: Mapping[str, Any], suits: Mapping[str, Any]) -> Any:
    """Build the dataclass of the kind that a section names, from the section's other settings."""
    return _of_kind(key, _section(given, key), suits.get(key, {}), key)


def _of_kind(key: str, section: Table, suits: Mapping[str, Any], path: str) -> Any:
    kinds = KINDS[key]
    name = section.pop("name", suits.get("name", DEFAULT_KINDS[key]))
    _typed(name, str, f"{path}.name")
    check_one_of(f"{path}.name", name, kinds, plugins=key != "committee")
    _check_owner(section, name, kinds, path)
    return _build(kinds[name], section, path, suits)


def _check_owner(
    section: Mapping[str, Any], name: str, kinds: Mapping[str, type[Any]], path: str
) -> None:
    """Refuse a setting that belongs to other kinds only."""
    names = {kind: {field.name for field in settable(kinds[kind])} for kind in kinds}
    for key in section:
        owners = [kind for kind in kinds if key in names[kind]]
        if owners and name not in owners:
            raise UserError(
                f"unknown key {path}.{key} of {name}: "
                f"it belongs to {path}.name = {' or '.join(owners)}"
            )


def _cohorts(given: Mapping[str, Any], suits: Mapping[str, Any]) -> tuple[Cohort, ...]:
    """Build the cohorts: the settings of each are laid over those of `model`."""
    rows = given.get("cohorts", [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise UserError(
            "cohorts must be a list of tables: "
            "write [[cohorts]] with clients = … and a model's settings"
        )
    shared = _section(given, "model")
    suited = suits.get("model", {})
    shared_name = shared.get("name", suited.get("name", DEFAULT_KINDS["model"]))
    cohorts = []
    for i, row in enumerate(rows):
        clients = _typed(row.get("clients"), int, f"cohorts[{i}].clients")
        if clients < 1:
            raise UserError(f"cohorts[{i}].clients must be at least 1, not {clients}")
        settings = {key: value for key, value in row.items() if key != "clients"}
        if settings.get("name", shared_name) == shared_name:
            settings = {**shared, **settings}
        cohorts.append(Cohort(clients, _of_kind("model", settings, suited, f"cohorts[{i}]")))
    return tuple(cohorts)


def _build(cls: type[T], given: Mapping[str, Any], path: str, suits: Mapping[str, Any]) -> T:
    """Make a dataclass of the given values (strictly its fields) and those of `suits` it has."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    check_keys(given, names, path)
    values = {name: suits[name] for name in names if name in suits}
    for key, value in given.items():
        values[key] = _typed(value, hints[key], _joined(path, key))
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in values:
            # Also of plugins, which need not look at their options.
            check_range(_joined(path, field.name), values[field.name], field)
    return cls(**values)


def _typed(value: Any, hint: Any, path: str) -> Any:
    """Return the value, if it is of the type; a whole number will do for a float."""
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        expected = _TYPE_NAMES.get(hint, str(hint))
        raise UserError(f"{path} must be {expected}, not {value!r}")
    return value


def check_keys(given: Mapping[str, Any], names: Sequence[str], path: str) -> None:
    """Raise UserError where a table has a key that is not among the names known at its path."""
    for key in given:
        if key in names:
            continue
        listed = "there are no keys here"
        if names:
            listed = f"the keys here are {', '.join(names)}"
        raise UserError(f"unknown key {_joined(path, key)}{did_you_mean(key, names)}; {listed}")


def _joined(path: str, key: str) -> str:
    if path:
        return f"{path}.{key}"
    return key
