"""How far a run is, read quickly and without PyTorch: for lists of many runs, and while they go on.

The files may be anybody's: they are read up to a bound, and what cannot be read is left out.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.files import toml
from fedrfq.files.locks import is_locked
from fedrfq.files.regular import open_regular
from fedrfq.runs import failure
from fedrfq.runs.find_runs import started

FINISHED = "finished"
DIVERGED = "diverged"
RUNNING = "running"
STOPPED = "stopped"
UNREADABLE = "unreadable"
# Bytes of the records' end that are read: some dozens of rounds.
_TAIL_BYTES = 1 << 16
# The speed is that of so many rounds.
_SPEED_ROUNDS = 20


@dataclass(frozen=True)
class RunProgress:
    """One run: what it is, the rounds `done` of `rounds`, and whether a process is training it."""

    path: Path
    started: str
    method: str
    data: str
    clients: int
    seed: int
    rounds: int
    done: int
    accuracy: float | None
    seconds_a_round: float | None
    state: str

    @property
    def seconds_left(self) -> float | None:
        """How long the rounds that are left will take; None where that cannot be said."""
        if self.seconds_a_round is None or self.state != RUNNING:
            return None
        return self.seconds_a_round * (self.rounds - self.done)

    @staticmethod
    def read(path: Path) -> RunProgress:
        """Read the run in the directory."""
        try:
            table = toml.read(path / "experiment.toml")
        except UserError:
            return RunProgress(path, started(path), "", "", 0, 0, 0, 0, None, None, UNREADABLE)
        last = _last_records(path / "rounds.jsonl")
        newest = last[-1] if last else {}
        seconds = [_float(record.get("seconds")) for record in last[-_SPEED_ROUNDS:]]
        known = [value for value in seconds if value is not None]
        return RunProgress(
            path=path,
            started=started(path),
            method=_name(table, "method"),
            data=_name(table, "data"),
            clients=_int(table.get("clients")),
            seed=_int(table.get("seed")),
            rounds=_int(table.get("rounds")),
            done=_int(newest.get("round")),
            accuracy=_float(newest.get("accuracy_mean")),
            seconds_a_round=sum(known) / len(known) if known else None,
            state=_state(path),
        )


def _state(path: Path) -> str:
    if (path / "result.json").exists():
        return FINISHED
    if (path / "diverged.json").exists():
        return DIVERGED
    failed = failure.reason(path)
    if failed is not None:
        return f"failed: {failed}"
    try:
        return RUNNING if is_locked(path) else STOPPED
    except OSError:
        # Some file systems have no locks.
        return STOPPED


def _last_records(path: Path) -> list[dict[str, Any]]:
    """Return the last complete records of the file, up to a few dozen."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return []
    # The first may begin in its middle, and the last may not be written to its end.
    records = [_record(line) for line in lines[:-1]]
    return [record for record in records if record is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _name(table: toml.Table, key: str) -> str:
    """Return the name that a section of an experiment has, in printable form and not too long."""
    section = table.get(key)
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(name, str):
        return ""
    return "".join(letter for letter in Path(name).name[:40] if letter.isprintable())


def _int(value: object) -> int:
    if type(value) is int and 0 <= value < 1 << 62:
        return value
    return 0


def _float(value: object) -> float | None:
    if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 1e12:
        return float(value)
    return None


def duration(seconds: float | None) -> str:
    """Return a time in words, such as "2 min 5 s"; a dash where it is not known."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
