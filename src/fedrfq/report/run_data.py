"""What a run's directory has, as far as it can be read. Nothing in it is trusted: all is bounded and of the right type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedrfq import data
from fedrfq.data import DATASETS
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import deal
from fedrfq.prototypes.fixed_point import MOST_COUNT
from fedrfq.report.clients_csv import Clients
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.snapshot import PrototypeSnapshot, Share, load_shares, shares
from fedrfq.runs.summary import rows

_MOST_BYTES = 1 << 28  # of the records
_MOST_DEALT = 2000  # clients whose samples are dealt again
_LARGEST = 1e18
_LONGEST = 200  # letters of a name

T = TypeVar("T")


@dataclass(frozen=True)
class RunData:
    """One run. `facts` are what `fedrfq show` prints; `notes` say what could not be had, and why."""

    path: Path
    experiment: Experiment
    text: str  # of experiment.toml
    environment: dict[str, Any]
    records: list[RoundRecord]
    clients: Clients
    shares: list[Share]
    prototypes: PrototypeSnapshot | None
    facts: list[tuple[str, str]]
    finished: bool
    notes: list[str]

    @staticmethod
    def read(path: Path) -> RunData:
        found = RunDirectory.open(path)
        notes = list[str]()
        experiment = found.experiment()
        records = records_of(found)
        environment = found.environment()
        return RunData(
            path,
            experiment,
            (path / "experiment.toml").read_text(encoding="utf-8"),
            environment,
            records,
            _tried(lambda: Clients.read(path / "clients.csv"), Clients((), ()), notes),
            _tried(lambda: _shares(found, experiment, environment), [], notes),
            _tried(lambda: _prototypes(found), None, notes),
            _facts(found),
            found.result() is not None,
            notes + _state(found, experiment, records),
        )

    def name_of(self, label: int) -> str:
        """The class's name, where the run says it."""
        known = self.environment["data"].get("classes")
        if isinstance(known, list) and label < len(known):
            name = str(known[label])
        else:
            name = str(label)
        return "".join(letter if letter.isprintable() else "·" for letter in name[:_LONGEST])


def records_of(run: RunDirectory) -> list[RoundRecord]:
    """All rounds, every field of the type it should have."""
    path = run.path / "rounds.jsonl"
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise UserError(
            f"{path} has more than {_MOST_BYTES:,} bytes: it is no run's that a report could show"
        )
    records = run.rounds()
    for record in records:
        for field in fields(record):
            if not _fits(getattr(record, field.name), str(field.type)):
                raise UserError(
                    f"{path}, line {record.round}: {field.name} is not {field.type}: restore it"
                )
    return records


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("list"):
        return isinstance(value, list) and all(
            type(item) is int and 0 <= item <= MOST_COUNT for item in value
        )
    if kind.startswith("dict"):
        return isinstance(value, dict) and all(
            key.isdecimal() and isinstance(item, str) for key, item in value.items()
        )
    wanted: tuple[type, ...] = (int, float)
    if kind.startswith("int"):
        wanted = (int,)
    none = value is None and (
        "None" in kind or "float" in kind
    )  # what was no number was written as null
    return none or (type(value) in wanted and math.isfinite(value) and abs(value) < _LARGEST)


def _facts(run: RunDirectory) -> list[tuple[str, str]]:
    try:
        return rows(run)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UserError(
            f"{run.path}: result.json or environment.json has other values than it should: restore it"
        ) from error


def _tried(read: Callable[[], T], otherwise: T, notes: list[str]) -> T:
    """What is read, or a note why not."""
    try:
        return read()
    except UserError as error:
        notes.append(str(error))
        return otherwise


def _state(run: RunDirectory, experiment: Experiment, records: list[RoundRecord]) -> list[str]:
    if (run.path / "diverged.json").is_file():
        return [f"The run diverged after round {len(records)}: losses were no longer numbers."]
    if len(records) < experiment.rounds:
        return [f"The run is not finished: {len(records)} of {experiment.rounds} rounds so far."]
    return []


def _shares(run: RunDirectory, experiment: Experiment, environment: dict[str, Any]) -> list[Share]:
    """As recorded; of older runs dealt again, where the very data are here."""
    found = load_shares(run.path)
    if found is not None:
        return found
    if experiment.data.name not in DATASETS or experiment.clients > _MOST_DEALT:
        raise UserError(
            "The run does not record its partition, and its data are not at hand: no map of classes and clients."
        )
    dataset = data.load(experiment.data.name)
    if dataset.sha256 != environment["data"].get("sha256"):
        raise UserError(
            "The run does not record its partition, and its data have changed: no map of classes and clients."
        )
    return shares(deal(experiment, dataset), dataset)


def _prototypes(run: RunDirectory) -> PrototypeSnapshot | None:
    """As recorded; of unfinished or older runs the global ones of the last checkpoint."""
    if not run.experiment().method.exchanges:
        return None
    found = PrototypeSnapshot.load(run.path)
    if found is not None:
        return found
    if not run.checkpoints():
        raise UserError(
            "The run has neither its last prototypes nor a checkpoint: no picture of them."
        )
    try:
        state = run.last(torch.device("cpu"))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The run's last checkpoint cannot be read ({error!r}): no picture of its prototypes."
        ) from error
    found = PrototypeSnapshot.only_global(state.round, state.globals_[0])
    if found.globals_.values_JV.dtype != np.int64 or not found.fits():
        raise UserError(
            "The run's last checkpoint has no prototypes of whole numbers: no picture of them."
        )
    return found
