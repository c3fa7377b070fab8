"""Where runs are: the directories that are given, and those in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fedrfq.errors import UserError

MOST_RUNS = 200  # that are compared
_DEPTH = 3  # folders below the one that is given


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """The runs' directories among these, and in these."""
    found = [run for path in paths for run in _below(path)]
    return list(dict.fromkeys(found))


def _below(path: Path) -> list[Path]:
    if (path / "experiment.toml").is_file():
        return [path]
    patterns = ("/".join(["*"] * depth + ["experiment.toml"]) for depth in range(1, _DEPTH + 1))
    found = sorted(
        file.parent for pattern in patterns for file in islice(path.glob(pattern), 10 * MOST_RUNS)
    )
    if not found:
        raise UserError(
            f"{path} is no run's directory, and there is none in it (runs/NAME/ID is one)"
        )
    return found
