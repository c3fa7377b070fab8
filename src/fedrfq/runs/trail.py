"""How the global prototypes moved: trail.jsonl has those of up to fifty rounds of a run.

The rounds are spread evenly over the run, so the file stays about as small as clients.csv.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.errors import UserError
from fedrfq.files.atomic import reporting_write_errors, write_atomically
from fedrfq.files.regular import read_text
from fedrfq.files.strict_json import to_json
from fedrfq.prototypes.fixed_point import Globals

NAME = "trail.jsonl"
_ROUNDS = 50
# Pages read runs of others: a longer file is refused.
_MAX_BYTES = 1 << 26
# No prototype in fixed point comes near this.
_MAX_VALUE = 1 << 40
# Never through a link, nor to a pipe, whatever lies there.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class TrailRound:
    """The global prototypes after a round."""

    round: int
    globals_: Globals


def append(folder: Path, rounds: int, number: int, globals_: Globals) -> None:
    """Note the prototypes after round `number` of `rounds`, if it is one of those to keep."""
    step = -(-rounds // _ROUNDS)
    if (number % step and number != 1) or not globals_.present_J.any():
        return
    labels = np.flatnonzero(globals_.present_J)
    line = {
        "round": number,
        "classes": len(globals_.present_J),
        "labels": labels.tolist(),
        "values": globals_.values_JV[labels].tolist(),
    }
    with reporting_write_errors(folder):
        handle = os.open(folder / NAME, _APPEND, 0o644)
        with os.fdopen(handle, "ab") as file:
            file.write(f"{to_json(line)}\n".encode())


def rewind(folder: Path, number: int) -> None:
    """Drop the rounds after `number`, which will be trained again."""
    path = folder / NAME
    if not os.path.lexists(path):
        return
    kept = [line for line in _lines(path) if _round(line) <= number]
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


def read(folder: Path) -> list[TrailRound]:
    """Return the rounds that were noted, first to last; none where there is no file."""
    path = folder / NAME
    if not os.path.lexists(path):
        return []
    try:
        trail = [_parsed(line) for line in _lines(path)]
        sizes = {done.globals_.values_JV.shape for done in trail}
        if len(sizes) > 1:
            raise ValueError("its rounds are of different sizes")
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"cannot read {path} ({error}): restore it, or remove it") from error
    return trail


def _lines(path: Path) -> list[str]:
    """Return the complete lines; a crash may have cut the last one short."""
    try:
        return read_text(path, _MAX_BYTES).split("\n")[:-1]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}): restore it, or remove it") from error


def _round(line: str) -> int:
    """Return the round of a line; one that is not ours counts as later than all."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, TypeError, KeyError):
        return 1 << 62


def _parsed(line: str) -> TrailRound:
    fields: dict[str, Any] = json.loads(line)
    values_RV = np.array(fields["values"], np.int64)
    labels_R = np.array(fields["labels"], np.int64)
    classes = int(fields["classes"])
    fits = values_RV.ndim == 2 and labels_R.shape == values_RV.shape[:1] and len(labels_R)
    if not fits or not 0 <= labels_R.min() <= labels_R.max() < classes <= len(line):
        raise ValueError("a line is not one that this program writes")
    if np.abs(values_RV).max() > _MAX_VALUE:
        raise ValueError("a prototype is out of range")
    present_J = np.zeros(classes, np.bool_)
    present_J[labels_R] = True
    values_JV = np.zeros((classes, values_RV.shape[1]), np.int64)
    values_JV[labels_R] = values_RV
    return TrailRound(int(fields["round"]), Globals(present_J, values_JV))
