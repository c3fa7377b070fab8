"""Reads a run directory. Nothing in it is trusted: sizes are bounded, types are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedrfq import data
from fedrfq.data import DATASETS
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files import toml
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import deal
from fedrfq.report.clients_csv import Clients
from fedrfq.runs import summary
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.snapshot import PrototypeSnapshot, Share, load_shares, shares

# Clients whose samples are dealt again where the run did not record them.
_MAX_DEALT = 2000
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
        records = run.rounds()
        environment = run.environment()
        return RunData(
            path=path,
            experiment=experiment,
            text=run.text("experiment.toml", toml.MAX_BYTES),
            environment=environment,
            records=records,
            clients=_try(lambda: Clients.read(path / "clients.csv"), Clients(), notes),
            shares=_try(lambda: _shares(run, experiment, environment), [], notes),
            prototypes=_try(lambda: _prototypes(run), None, notes),
            settings=summary.settings(run),
            results=summary.rows(run),
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
