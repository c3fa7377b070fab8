"""Finds run directories among and below the directories that a user names, and the newest run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from fedrfq.errors import UserError

# A comparison of more would be unreadable.
MAX_RUNS = 200
# How many levels below the named directory are searched.
_MAX_DEPTH = 3
# Stands for the newest run wherever a run is asked for.
LATEST = "latest"
# Where runs are unless --out said otherwise.
_RUNS = Path("runs")
# A run's directory is named after the time at which it started, the seed and a hash.
_STAMP = re.compile(r"\d{8}-\d{6}")


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


def started(run: Path) -> str:
    """Return when a run started (UTC), such as 20260101-120000: by its name, or by its first file.

    The name counts first, because a copy of a run has new times.
    """
    stamp = _STAMP.match(run.name)
    if stamp:
        return stamp.group()
    try:
        written = (run / "experiment.toml").stat().st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(written, UTC).strftime("%Y%m%d-%H%M%S")


def newest_first(runs: Iterable[Path]) -> list[Path]:
    """Return the runs in the order in which they were started, the last one first."""
    return sorted(runs, key=lambda run: (started(run), run.name), reverse=True)


def named(path: Path) -> Path:
    """Return the path, or the newest run in runs/ where it is "latest" and nothing is there."""
    if str(path) != LATEST or path.exists():
        return path
    if not _RUNS.is_dir():
        raise UserError(
            f"{LATEST} stands for the newest run in {_RUNS}/, and there is no such folder here: "
            "name a run's directory"
        )
    return newest_first(runs_in([_RUNS]))[0]
