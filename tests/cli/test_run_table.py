"""What `fedrfq run` says at its end: the table, and commands to try next that work as printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fedrfq.cli.run_table import run_table
from fedrfq.runs import summary
from support.command import SMALL, fedrfq, only_run, sets, small_session

QUICK = sets([*SMALL, "rounds=1"])


def suggested(stdout: str) -> list[list[str]]:
    """Return the commands that the output ends with, without the program's name."""
    lines = stdout.split("Try next:\n")[1].splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("committee", ["direct", "simulated"])
def test_a_run_ends_with_commands_that_work(tmp_path: Path, committee: str) -> None:
    choice = ("--set", f"committee.name={committee}")
    done = fedrfq("run", *QUICK, *choice, "--out", tmp_path / "my runs")
    commands = suggested(done.stdout)
    names = [command[0] for command in commands]
    assert names == ["show", "report", *(["verify"] if committee == "simulated" else [])]
    for command in commands:
        assert command[1] == str(only_run(tmp_path / "my runs").path)
        fedrfq(*command)


def test_json_is_not_followed_by_suggestions(tmp_path: Path) -> None:
    done = fedrfq("run", *QUICK, "--out", tmp_path, "--json")
    assert "Try next" not in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 1


def test_several_seeds_are_reported_together(tmp_path: Path) -> None:
    done = fedrfq("run", *QUICK, "--out", tmp_path, "--seed", 0, "--seed", 1)
    (report,) = [command for command in suggested(done.stdout) if command[0] == "report"]
    assert len(report) == 3


def test_the_table_has_a_row_for_each_fact(tmp_path: Path) -> None:
    fedrfq("run", *QUICK, "--out", tmp_path, "--json")
    table = run_table(only_run(tmp_path))
    assert table.row_count > 5
    assert "seed 0" in str(table.title)


def test_the_table_says_what_clients_know_of_all_classes(tmp_path: Path) -> None:
    done = fedrfq("run", *QUICK, "--out", tmp_path, "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    rows = dict(summary.rows(only_run(tmp_path)))
    assert rows["accuracy, all classes"] == (
        f"{result['accuracy_all']:.2f} % (held {result['accuracy_held']:.2f} %, "
        f"not held {result['accuracy_unheld']:.2f} %; "
        f"worst client {result['accuracy_all_worst']:.2f} %)"
    )
    by_prototype = f"{result['prototype_accuracy_all']:.2f} %"
    assert rows["… by nearest prototype"].startswith(by_prototype)
    assert len(result["recall"]) == 10


def test_the_table_says_where_there_is_no_figure_on_all_classes(tmp_path: Path) -> None:
    """Nobody has been tested before the first checkpoint; an older run was never tested."""
    session = small_session(tmp_path)
    next(iter(session.advance()))
    session.close()
    (run,) = session.runs
    assert dict(summary.rows(run))["accuracy, all classes"] == "– (not tested yet)"
    text = (run.path / "experiment.toml").read_text()
    (run.path / "experiment.toml").write_text(text.replace("checkpoint = 2", "checkpoint = 1"))
    assert dict(summary.rows(run))["accuracy, all classes"] == "– (no common test set)"
