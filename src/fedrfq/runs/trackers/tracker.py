"""What all trackers share: the figures of a round, and those of its clients, grouped under it."""

from __future__ import annotations

import csv
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from fedrfq.files.regular import open_regular
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.runs.callbacks import Callback
from fedrfq.runs.recorded_run import RecordedRun

# Clients whose figures are tracked one by one: more would drown those of the federation.
MAX_CLIENTS = 100
# No row of clients.csv is longer.
_ROW_BYTES = 1 << 12
_CLIENT_FIGURES = (
    "accuracy",
    "prototype_accuracy",
    "accuracy_all",
    "loss_classification",
    "loss_prototype",
    "weight",
)

T = TypeVar("T")


class Tracker(Callback, ABC, Generic[T]):
    """Sends a run's figures to another program: one run for the federation, clients under it.

    A subclass opens its own kind of run, logs figures to it, and closes it. Several federations
    that are trained side by side have one each.
    """

    # The package that it needs; a tracker of one's own may need none.
    package: ClassVar[str] = ""

    def __init__(self) -> None:
        self._open: dict[Path, T] = {}

    @classmethod
    def installed(cls) -> bool:
        """Return whether the package that it needs is there."""
        return not cls.package or find_spec(cls.package) is not None

    @abstractmethod
    def open(self, run: RecordedRun) -> T:
        """Begin, or go on with, the tracker's run; its name is that of the run's directory."""

    @abstractmethod
    def log(self, opened: T, number: int, figures: Mapping[str, float]) -> None:
        """Note the figures after round `number`."""

    @abstractmethod
    def close(self, opened: T, status: str) -> None:
        """End the tracker's run; `status` is as in `Callback.on_end`."""

    def on_start(self, run: RecordedRun) -> None:
        """Open the tracker's run."""
        self._open[run.path] = self.open(run)

    def on_round(self, run: RecordedRun, record: RoundRecord) -> None:
        """Log the round."""
        self.log(self._open[run.path], record.round, figures(run, record))

    def on_end(self, run: RecordedRun, status: str) -> None:
        """Close the tracker's run."""
        if run.path in self._open:
            self.close(self._open.pop(run.path), status)


def settings(run: RecordedRun) -> dict[str, Any]:
    """Return the experiment as one flat table, by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in run.experiment.table().items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": setting for name, setting in value.items()})
        else:
            flat[key] = value
    return flat


def figures(run: RecordedRun, record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round by name; those of client 3 are `clients/03/…`."""
    found = {name: value for name, value in asdict(record).items() if _is_number(value)}
    del found["round"]
    for row in _clients(run, record.round):
        client = int(row["client"])
        for name in _CLIENT_FIGURES:
            if row.get(name):
                found[f"clients/{client:02d}/{name}"] = float(row[name])
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _clients(run: RecordedRun, number: int) -> list[dict[str, str]]:
    """Return the first clients' rows of a round, which are the last of clients.csv."""
    with open_regular(run.path / "clients.csv") as file:
        header = file.readline(_ROW_BYTES).decode()
        # Only the end is read: a round must not take longer the more there were before it.
        size = os.fstat(file.fileno()).st_size
        file.seek(max(len(header.encode()), size - _ROW_BYTES * run.experiment.clients))
        lines = file.read().decode(errors="replace").split("\n")
    rows = csv.DictReader([header, *lines])
    found = [row for row in rows if row.get("round") == str(number)]
    return [row for row in found if int(row["client"] or MAX_CLIENTS) < MAX_CLIENTS]
