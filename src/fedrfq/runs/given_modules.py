"""Modules of the user's own in experiments: those given to `fedrfq.run`, and by `--module`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files.toml import Table
from fedrfq.models import any_module
from fedrfq.models.any_module import AnyModule, as_option, give, source_of
from fedrfq.plugins.files import run_for_its_names

Given = Mapping[str, Any]  # modules, or what makes them, by the names of their sources
_LAYERS = ("head_layer", "feature_layer")


def given_by_name(model: Any) -> Given:
    """Return what was given as `model=` by its names: one module, or a dict of several."""
    if model is None:
        return {}
    if isinstance(model, Mapping):
        return model
    return {source_of(model): model}


def sources(experiment: Experiment) -> list[str]:
    """Return the sources of an experiment's modules, each once."""
    models = [cohort.model for cohort in experiment.models()]
    return list(dict.fromkeys(m.source for m in models if isinstance(m, AnyModule)))


def check_given(experiment: Experiment) -> None:
    """Raise UserError if a module of the experiment was not given to this process."""
    for cohort in experiment.models():
        if isinstance(cohort.model, AnyModule):
            cohort.model.program()


def options(experiment: Experiment) -> list[str]:
    """Return the options by which a command gets the same modules."""
    return [word for source in sources(experiment) for word in ("--module", as_option(source))]


def imported(sources: Sequence[str]) -> Given:
    """Import what the user named on the command line, in files or modules."""
    return {source: _imported(source) for source in sources}


def _imported(source: str) -> Any:
    path, _, name = source.rpartition(":")
    if not path or not name:
        raise UserError(
            "--module takes FILE.py:NAME or PACKAGE.MODULE:NAME, such as nets:Net; "
            f"found '{source}'"
        )
    try:
        return attrgetter(name)(_module(path))
    except AttributeError as error:
        raise UserError(f"--module {source}: {path} has no {name}: check the name") from error
    except ImportError as error:
        raise UserError(
            f"--module {source}: {error}; start in the folder of {path.split('.')[0]}.py, name it "
            "by its path, or install its package"
        ) from error


def _module(path: str) -> ModuleType:
    """Import a file, or a module from the current folder or installed."""
    file = Path(path) if path.endswith(".py") else None
    folder = str(file.resolve().parent if file else Path.cwd())
    # Only while this is imported: nothing else is to come from there.
    sys.path.insert(0, folder)
    try:
        return run_for_its_names(file) if file else importlib.import_module(path)
    finally:
        sys.path.remove(folder)


def with_modules(table: Table, given: Given, shape: tuple[int, int, int], classes: int) -> Table:
    """Return an experiment's table with the facts of the given modules, which are made known.

    Sections with `name = "module"` say by `source` which one they mean. If none does, the one
    module that was given is the model of all clients.
    """
    if not given:
        return table
    cohorts = table.get("cohorts", [])
    if not isinstance(cohorts, list) or not all(isinstance(row, Mapping) for row in cohorts):
        return table  # reading the table says what is wrong with it
    sections = [_section(table), *map(dict, cohorts)]
    if not any(section.get("name") == "module" for section in sections):
        layers = {key: sections[0][key] for key in _LAYERS if key in sections[0]}
        sections[0] = {"name": "module", **layers}
    filled = [_filled(section, given, shape, classes) for section in sections]
    with_model = {**table, "model": filled[0]}
    if "cohorts" in table:
        with_model["cohorts"] = filled[1:]
    return with_model


def _section(table: Table) -> Table:
    section = table.get("model", {})
    if not isinstance(section, Mapping):
        raise UserError(f"model must be a section, not the value {section!r}: write [model]")
    return dict(section)


def _filled(section: Table, given: Given, shape: tuple[int, int, int], classes: int) -> Table:
    """Return a section with what is known of the module it names, if it names one."""
    if section.get("name") != "module":
        return section
    source = section.get("source", "")
    if not source and len(given) == 1:
        (source,) = given
    if source not in given:
        raise UserError(
            f"model.source is '{source}', but the modules given are {', '.join(given)}: "
            "name one of these"
        )
    model = give(given[source], shape, classes, source, section)
    others = {key: value for key, value in section.items() if key == "clients"}
    return {**others, "name": "module", **vars(model)}


def give_again(
    experiment: Experiment, given: Given, shape: tuple[int, int, int], classes: int
) -> None:
    """Make the modules of a run known to this process again."""
    for cohort in experiment.models():
        model = cohort.model
        if not isinstance(model, AnyModule):
            continue
        found = given.get(model.source)
        if found is None and len(given) == 1:
            (found,) = given.values()
        if found is not None:
            any_module.give_again(model, found, shape, classes)
