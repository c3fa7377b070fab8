"""Grids small enough for a test: a dataset of four easy classes, and files that name it."""

import json
from pathlib import Path

import numpy as np

from fedrfq.experiment import Experiment
from fedrfq.runs.run_directory import RunDirectory
from support.command import fedrfq

EXPERIMENT = """
[experiment]
rounds = {rounds}
clients = 5
checkpoint = 2
data = {{name = "{data}"}}
model = {{name = "mlp", width = 8}}
partition = {{ways = 2, spread = 1, shots = 6, test_shots = 10}}
"""


def grid_file(folder: Path, top: str, rounds: int = 4, more: str = "") -> Path:
    """A file of the grid, beside its data."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "tiny.npz"
    if not data.exists():
        rng = np.random.default_rng(0)
        y = np.arange(600) % 4
        x = (rng.integers(0, 120, (600, 1, 6, 6)) + 30 * y[:, None, None, None]).astype(np.uint8)
        np.savez(data, train_x=x[:400], train_y=y[:400], test_x=x[400:], test_y=y[400:])
    file = folder / "grid.toml"
    file.write_text(f"{top}\n{EXPERIMENT.format(rounds=rounds, data=data)}{more}")
    return file


def table(out: Path, name: str = "grid") -> dict:
    return json.loads((out / name / "table.json").read_text())


def found(out: Path, name: str = "grid") -> dict[str, RunDirectory]:
    """The grid's runs by their experiments' hashes."""
    runs = [RunDirectory.open(path.parent) for path in (out / name).glob("*/experiment.toml")]
    by_hash = {run.experiment().hash(): run for run in runs}
    assert len(by_hash) == len(runs)
    return by_hash


def run_of(out: Path, experiment: Experiment) -> RunDirectory:
    return found(out, experiment.name)[experiment.hash()]


def refused(command: str, file: Path, out: Path) -> str:
    """What the command says of a file that it does not take; nothing is written."""
    said = fedrfq(command, file, "--out", out, "--device", "cpu", expect=2).stderr
    assert not out.exists()
    return said
