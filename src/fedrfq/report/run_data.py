"""Reads a run directory. Nothing in it is trusted: sizes are bounded, types are checked."""

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
from fedrfq.prototypes.fixed_point import MAX_COUNT
from fedrfq.report.clients_csv import Clients
from fedrfq.runs import summary
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.snapshot import PrototypeSnapshot, Share, load_shares, shares

# Bytes of rounds.jsonl that are read.
_MAX_BYTES = 1 << 28
# Clients whose samples are dealt again where the run did not record them.
_MAX_DEALT = 2000
# No number of a record comes near this; a larger one would break the axes.
_MAX_NUMBER = 1e18
# Characters of a class's name.
_MAX_NAME = 200

T = TypeVar("T")


@dataclass(frozen=True)
class RunData:
    """One run: `settings` are what was run, `notes` say what is missing and why."""

    path: Path
    experiment: Experiment
    text: str  # the content of experiment.toml
    environment: dict[str, Any]
    records: list[RoundRecord]
    clients: Clients
    shares: list[Share]
    prototypes: PrototypeSnapshot | None
    settings: list[tuple[str, str]]
    results: list[tuple[str, str]]
    finished: bool
    notes: list[str]

    @staticmethod
    def read(path: Path) -> RunData:
        """Read the run in the directory; parts that cannot be read become notes."""
        run = RunDirectory.open(path)
        notes = list[str]()
        experiment = run.experiment()
        records = records_of(run)
        environment = run.environment()
        return RunData(
            path=path,
            experiment=experiment,
            text=(path / "experiment.toml").read_text(encoding="utf-8"),
            environment=environment,
            records=records,
            clients=_try(lambda: Clients.read(path / "clients.csv"), Clients(), notes),
            shares=_try(lambda: _shares(run, experiment, environment), [], notes),
            prototypes=_try(lambda: _prototypes(run), None, notes),
            settings=_facts(run, summary.settings),
            results=_facts(run, summary.rows),
            finished=run.result() is not None,
            notes=notes + _progress_notes(run, experiment, records),
        )

    def name_of(self, label: int) -> str:
        """Return the class's name, or its number if the run has no names, in printable form."""
        names = self.environment["data"].get("classes")
        name = str(label)
        if isinstance(names, list) and label < len(names):
            name = str(names[label])
        return "".join(letter if letter.isprintable() else "·" for letter in name[:_MAX_NAME])


def records_of(run: RunDirectory) -> list[RoundRecord]:
    """Return the records of all rounds, each field checked to be of its type."""
    path = run.path / "rounds.jsonl"
    if path.is_file() and path.stat().st_size > _MAX_BYTES:
        raise UserError(
            f"{path} has more than {_MAX_BYTES:,} bytes, which is too much for a report: "
            "check that this is the run's own file"
        )
    records = run.rounds()
    for record in records:
        for field in fields(record):
            if not _fits(getattr(record, field.name), str(field.type)):
                raise UserError(
                    f"{path}, line {record.round}: {field.name} is not {field.type}: "
                    "restore the file"
                )
    return records


def _fits(value: Any, kind: str) -> bool:
    """Whether a record's value is of this kind, written as a type annotation."""
    if kind.startswith("list[int]"):
        return isinstance(value, list) and all(
            type(item) is int and 0 <= item <= MAX_COUNT for item in value
        )
    if kind.startswith("list[float") and value is not None:
        return isinstance(value, list) and all(_fits(item, "float") for item in value)
    if kind.startswith("dict"):
        return isinstance(value, dict) and all(
            key.isdecimal() and isinstance(item, str) for key, item in value.items()
        )
    if value is None:
        # JSON has no nan: a float that is not a number is written as null.
        return "None" in kind or "float" in kind
    types: tuple[type, ...] = (int, float)
    if kind.startswith("int"):
        types = (int,)
    return type(value) in types and math.isfinite(value) and abs(value) < _MAX_NUMBER


def _facts(
    run: RunDirectory, facts: Callable[[RunDirectory], list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    try:
        return facts(run)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UserError(
            f"{run.path}: result.json or environment.json holds values of the wrong type: "
            "restore the files"
        ) from error


def _try(read: Callable[[], T], fallback: T, notes: list[str]) -> T:
    """Return what `read` returns, or the fallback and a note that says why."""
    try:
        return read()
    except UserError as error:
        notes.append(str(error))
        return fallback


def _progress_notes(
    run: RunDirectory, experiment: Experiment, records: list[RoundRecord]
) -> list[str]:
    """Say whether the run diverged, or has not finished yet."""
    done = len(records)
    if (run.path / "diverged.json").is_file():
        return [f"The run diverged after round {done}: its losses were no longer numbers."]
    if done < experiment.rounds:
        return [f"The run has not finished: {done} of {experiment.rounds} rounds are done."]
    return []


def _shares(run: RunDirectory, experiment: Experiment, environment: dict[str, Any]) -> list[Share]:
    """Return who holds what as recorded; for older runs, deal the same data again."""
    recorded = load_shares(run.path)
    if recorded is not None:
        return recorded
    if experiment.data.name not in DATASETS or experiment.clients > _MAX_DEALT:
        raise UserError(
            "The run did not record its partition, and its data is not available here, "
            "so the map of classes and clients is missing."
        )
    # Dealing is deterministic, so the same data gives the same shares.
    dataset = data.load(experiment.data.name)
    if dataset.sha256 != environment["data"].get("sha256"):
        raise UserError(
            "The run did not record its partition, and its data has changed since, "
            "so the map of classes and clients is missing."
        )
    return shares(deal(experiment, dataset), dataset)


def _prototypes(run: RunDirectory) -> PrototypeSnapshot | None:
    """Return the recorded prototypes; for unfinished or older runs, the last checkpoint's."""
    if not run.experiment().method.exchanges:
        return None
    recorded = PrototypeSnapshot.load(run.path)
    if recorded is not None:
        return recorded
    if not run.checkpoints():
        raise UserError(
            "The run has neither its last prototypes nor a checkpoint, "
            "so the figure of prototypes is missing."
        )
    try:
        state = run.last(torch.device("cpu"))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"Cannot read the run's last checkpoint ({error!r}), "
            "so the figure of prototypes is missing."
        ) from error
    snapshot = PrototypeSnapshot.only_global(state.round, state.globals_[0])
    if snapshot.globals_.values_JV.dtype != np.int64 or not snapshot.fits():
        raise UserError(
            "The prototypes in the run's last checkpoint are not whole numbers, "
            "so the figure of prototypes is missing."
        )
    return snapshot
