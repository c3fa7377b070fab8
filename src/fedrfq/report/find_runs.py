"""Finds run directories among and below the directories that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fedrfq.errors import UserError

# A comparison of more would be unreadable.
MAX_RUNS = 200
# How many levels below the named directory are searched.
_MAX_DEPTH = 3


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories among these paths and below them, each once."""
    runs = [run for path in paths for run in _below(path)]
    return list(dict.fromkeys(runs))


def _below(path: Path) -> list[Path]:
    if (path / "experiment.toml").is_file():
        return [path]
    runs: list[Path] = []
    for depth in range(1, _MAX_DEPTH + 1):
        pattern = "*/" * depth + "experiment.toml"
        # A home directory may have far more files than anybody wants to compare.
        found = [file.parent for file in islice(path.glob(pattern), 10 * MAX_RUNS)]
        # An example also has an experiment.toml; only a run has records of its rounds.
        runs += [folder for folder in found if (folder / "rounds.jsonl").is_file()]
    if not runs:
        raise UserError(
            f"{path} is not a run directory and contains none: "
            "name one, such as runs/NAME/ID, or a directory of several"
        )
    return sorted(runs)
