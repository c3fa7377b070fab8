"""Run the program in this process or in a new one, and read what it left behind."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fedrfq import experiment
from fedrfq.cli import main
from fedrfq.learning.all_classes import COMMON_COLUMNS
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session

SMALL = ["clients=6", "rounds=8", "checkpoint=2", "partition.shots=8", "partition.test_shots=5"]
CPU = torch.device("cpu")
# How long a round takes once a test waits in it, in seconds.
PAUSE = 0.5
TIMES = ("seconds", "seconds_train")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedrfq.cli", *(str(argument) for argument in arguments)]


def sets(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def fedrfq(*arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in this process; return its exit code and output."""
    out = io.StringIO()
    errors = io.StringIO()
    code = 0
    with (
        redirect_stdout(out),
        redirect_stderr(errors),
        mock.patch.object(sys, "argv", ["fedrfq", *map(str, arguments)]),
    ):
        try:
            main.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    assert code == expect, errors.getvalue()
    return subprocess.CompletedProcess([], code, out.getvalue(), errors.getvalue())


def only_run(out: Path) -> RunDirectory:
    (path,) = out.glob("*/*")
    return RunDirectory.open(path)


def records(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def of_every_round(path: Path) -> list[dict[str, Any]]:
    """Return the records without the figures that only rounds with a checkpoint have."""
    sometimes = ("accuracy_all_worst", "recall", *COMMON_COLUMNS)
    return [
        {key: value for key, value in record.items() if key not in sometimes}
        for record in records(path)
    ]


def clients(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((path / "clients.csv").read_text().splitlines()))


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that records, clients' figures and tensors are the same bytes, except for times."""
    assert records(one) == records(other)
    assert (one / "clients.csv").read_bytes() == (other / "clients.csv").read_bytes()
    (left,) = RunDirectory.open(one).checkpoints().items()
    (right,) = RunDirectory.open(other).checkpoints().items()
    assert left[0] == right[0]
    assert left[1].read_bytes() == right[1].read_bytes()


def started(
    out: Path, settings: list[str], rounds: int, *more: object
) -> tuple[subprocess.Popen[str], Path]:
    """Start a run in the background; return it when it has recorded that many rounds.

    From then on each round takes longer by PAUSE: the run does not end before the test acts.
    """
    arguments = ["run", *sets(settings), "--out", str(out), *map(str, more)]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.slow_run", str(rounds), *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = sorted(out.glob("*/*/rounds.jsonl"))
        if files and all(file.read_text().count("\n") >= rounds for file in files):
            return process, files[0].parent
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    raise AssertionError(f"the run did not record {rounds} rounds in time")


def small_session(out: Path, *more: str) -> Session:
    return Session.begin([experiment.load(sets=[*SMALL, *more])], CPU, out)


def damaged(run_: Path, tmp_path: Path, name: str, text: str) -> Path:
    """Return a copy of the run with one file replaced."""
    copy = tmp_path / "copy"
    shutil.copytree(run_, copy)
    (copy / name).write_text(text)
    return copy
