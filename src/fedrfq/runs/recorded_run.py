"""A run as its directory has it: records as tables, trained models, prototypes, predictions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.models.any_module import AnyModule
from fedrfq.runs import columns
from fedrfq.runs.inference import ClientModel
from fedrfq.runs.run_directory import CLIENT_COLUMNS, MAX_RECORDS_BYTES, RunDirectory


class RecordedRun:
    """A run, whether it is training, was stopped or has finished.

    Everything is read from the run's directory when it is asked for, so it is of the newest round
    or, for models and prototypes, of the newest checkpoint.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._stopping = False

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self.directory.path

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, as experiment.toml has it."""
        return self.directory.experiment()

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, device, and what data and model the run has, by name and hash."""
        return self.directory.environment()

    @property
    def rounds(self) -> Any:
        """A row for each round: a pandas DataFrame, or a dict of columns without pandas."""
        names = [field.name for field in fields(RoundRecord)]
        return columns.table([asdict(record) for record in self.directory.rounds()], names)

    @property
    def clients(self) -> Any:
        """A row for each round and client: a DataFrame, or a dict of columns without pandas."""
        text = self.directory.text("clients.csv", MAX_RECORDS_BYTES)
        rows = [
            {name: columns.value(text) for name, text in row.items()}
            for row in csv.DictReader(text.splitlines())
        ]
        return columns.table(rows, CLIENT_COLUMNS)

    @property
    def result(self) -> dict[str, Any] | None:
        """The figures of a run that has finished or was stopped; None while it trains."""
        return self.directory.result() or self.directory.result_so_far()

    @property
    def models(self) -> ClientModels:
        """The clients' models: `run.models[3]` is that of client 3, as an `nn.Module`."""
        return ClientModels(self)

    @property
    def prototypes(self) -> dict[str, NDArray[np.float64]]:
        """The newest global prototypes, by the names of their classes."""
        globals_ = self._newest().last(torch.device("cpu")).globals_[0]
        names = self.environment["data"].get("classes", [])
        values_JV = globals_.floats()
        return {names[j]: values_JV[j] for j in np.flatnonzero(globals_.present_J)}

    def predict(self, client: int, images: Any, threshold: float | None = None) -> Any:
        """Classify images with a client's model, a row for each.

        `images` are paths of files, or pixels in an array or tensor: N×H×W, N×H×W×C or N×C×H×W.
        """
        model = ClientModel.load(self._newest(), client)
        return columns.table(model.predict(images, threshold))

    def verify(self, recompute: bool = True) -> dict[str, Any]:
        """Check what the run's committee decided, by its public keys alone, and recompute it.

        Raises `AuditFailed` where something does not hold.
        """
        from fedrfq.audit import Audit

        if not self.directory.audited():
            raise UserError(
                f"{self.path} has no audit log, because one trusted server decided: "
                'set committee.name = "simulated" to have decisions that can be verified'
            )
        audit = Audit(self.path, recompute)
        rounds = list(audit.rounds())
        evidence = [vars(charge) for audited in rounds for charge in audited.charges]
        return {"holds": True, "rounds": len(rounds), "evidence": evidence}

    def stop(self) -> None:
        """Make the round that is training, or has just ended, the last one for now."""
        self._stopping = True

    def _newest(self) -> RunDirectory:
        """Return the directory, to read its newest checkpoint."""
        return self.directory

    def __repr__(self) -> str:
        done = len(self.directory.rounds())
        return f"<run {self.path}: {done} of {self.experiment.rounds} rounds>"


class ClientModels(Sequence[nn.Module]):
    """The newest models of a run's clients, each read from a checkpoint when it is asked for."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.experiment.clients

    def __getitem__(self, client: Any) -> Any:
        """Return the client's model in evaluation mode, with parameters that can be trained on."""
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        if client not in range(-len(self), len(self)):
            raise IndexError(f"client {client}: the run has clients 0 to {len(self) - 1}")
        loaded = ClientModel.load(self._run._newest(), client % len(self))
        model = loaded.module.model
        if isinstance(model, AnyModule):
            # The user's own class, not our wrapper around it.
            return model.program().rebuilt(loaded.params)
        return loaded.module
