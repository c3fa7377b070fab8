"""Grids small enough for a test: a dataset of four easy classes, and study files that use it."""

import json
from pathlib import Path

import numpy as np

from fedrfq.experiment import Experiment
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.studies.compare import ComparePlan
from fedrfq.studies.study import Study
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
    """Write a study file beside its data, and return its path."""
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
    """Return the table.json of a study."""
    return json.loads((out / name / "table.json").read_text())


def found(out: Path, name: str = "grid") -> dict[str, RunDirectory]:
    """Return the grid's runs by experiment hash."""
    runs = [RunDirectory.open(path.parent) for path in (out / name).glob("*/experiment.toml")]
    by_hash = {run.experiment().hash(): run for run in runs}
    assert len(by_hash) == len(runs)
    return by_hash


def run_of(out: Path, experiment: Experiment) -> RunDirectory:
    """Return the run of an experiment."""
    return found(out, experiment.name)[experiment.hash()]


def refused(command: str, file: Path, out: Path) -> str:
    """Return the error with which a command refuses a file, having written nothing."""
    error = fedrfq(command, file, "--out", out, "--device", "cpu", expect=2).stderr
    assert not out.exists()
    return error


def comparison_of(file: Path, *, controls: bool = True, tune: bool = True) -> ComparePlan:
    """Return the comparison of a file, as `compare` reads it with these options."""
    changes = {}
    if not controls:
        changes["controls"] = False
    if not tune:
        changes["tune"] = []
    return ComparePlan.of(Study.load(file, kind="compare", changes=changes))
