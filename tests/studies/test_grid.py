"""Grids stopped at any point and resumed, runs that diverge, and which runs are stacked."""

import os
import shlex
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from fedrfq import UserError
from fedrfq.files import locks
from fedrfq.files.strict_json import to_json
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.studies.grid import Grid, linked, restack
from support.command import CPU, assert_same_run, command, fedrfq, records
from support.grids import comparison_of, found, grid_file, table

TOP = 'seeds = [0, 1]\naxes.method = ["fedproto", "local"]'
AS_ASKED = ("--no-controls", "--no-tune")


def asked(file):
    """Return the comparison of what the file names, with nothing beside it."""
    return comparison_of(file, controls=False, tune=False)


def grid(file, out, most=200):
    return Grid(asked(file).experiments, out, CPU, most, True)


def compare(file, out, *more, expect=0):
    return fedrfq("compare", file, "--out", out, "--device", "cpu", *AS_ASKED, *more, expect=expect)


def figures(file, ended):
    """Return the table without times and directories."""
    comparison = asked(file)
    whole = comparison.whole(comparison.measure(ended))
    for row in (*whole["runs"], *whole["cells"]):
        for key in ("seconds", "directory"):
            row.pop(key, None)
    return whole


def states(out):
    """Return when each file of the runs was last written."""
    files = [file for run in found(out).values() for file in run.path.rglob("*") if file.is_file()]
    return {file: file.stat().st_mtime_ns for file in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    file = grid_file(folder, TOP)
    list(grid(file, folder / "out").advance())
    return file, folder / "out"


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7])
def test_killed_after_any_round_it_ends_as_if_never_stopped(tmp_path, whole, steps):
    file, out = whole
    going = grid(file, tmp_path).advance()
    for _ in range(steps):
        next(going)
    del going  # nothing more is written: kill -9
    ended = {key: run for key, run in found(tmp_path).items() if run.result()}
    assert len(ended) == (2 if steps > 4 else 0)
    before = {
        file: written
        for file, written in states(tmp_path).items()
        if any(run.path in file.parents for run in ended.values())
    }
    again = grid(file, tmp_path)
    list(again.advance())
    assert before.items() <= states(tmp_path).items()
    for key, run in found(out).items():
        assert_same_run(found(tmp_path)[key].path, run.path)
    assert figures(file, again.ended) == figures(file, grid(file, out).ended)


def test_killed_between_results(tmp_path, whole):
    file, out = whole
    shutil.copytree(out / "grid", tmp_path / "grid")
    runs = found(tmp_path)
    first = next(run for run in runs.values() if run.experiment().method.exchanges)
    (first.path / "result.json").unlink()
    left = grid(file, tmp_path)
    assert [len(stack.runs) for stack in left.stacks] == [1]
    assert list(left.advance()) == []
    assert found(tmp_path)[first.experiment().hash()].result() is not None
    for key, run in found(out).items():
        assert_same_run(runs[key].path, run.path)


def test_killed_while_directories_are_made(tmp_path, whole):
    """Only one of two runs knows yet what it is stacked with; or neither does."""
    file, _ = whole
    next(grid(file, tmp_path).advance())
    one, other = found(tmp_path).values()
    unsaid = {
        run: {key: value for key, value in run.environment().items() if key != "stack"}
        for run in (one, other)
    }
    other.write("environment.json", to_json(unsaid[other]))
    assert linked([other, one]) == [[other, one]]
    one.write("environment.json", to_json(unsaid[one]))
    assert linked([one, other]) == []
    assert [len(stack.runs) for stack in grid(file, tmp_path).stacks] == [0, 0]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, stop):
    file = grid_file(tmp_path, 'seeds = [0, 1]\naxes.method = ["fedproto"]', rounds=40_000)
    file.write_text(file.read_text().replace("checkpoint = 2", "checkpoint = 1000"))
    out = tmp_path / "out"
    process = subprocess.Popen(
        command("compare", file, "--out", out, "--device", "cpu", *AS_ASKED),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(len(path.read_bytes().splitlines()) > 1 for path in out.glob("*/*/rounds.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    again = shlex.join(command("compare", file, *AS_ASKED, "--out", out))
    assert f"continue with: {again}" in errors
    for run in found(out).values():
        (checkpoint,) = run.checkpoints()
        # An interrupted round may have left its record.
        assert len(records(run.path)) - checkpoint in (0, 1)


def test_a_grid_with_more_seeds_takes_over_what_is_there(tmp_path, whole):
    file, out = whole
    shutil.copytree(out / "grid", tmp_path / "out" / "grid")
    before = states(tmp_path / "out")
    larger = grid_file(tmp_path, 'seeds = [1, 2]\naxes.method = ["local"]')
    larger.write_text(
        larger.read_text().replace(str(tmp_path / "tiny.npz"), str(file.parent / "tiny.npz"))
    )
    done = compare(larger, tmp_path / "out")
    assert "2 runs, 1 of them done; 1 to train in 1 stack" in done.stderr
    assert before.items() <= states(tmp_path / "out").items()
    assert [run["seed"] for run in table(tmp_path / "out")["runs"]] == [1, 2]


def test_other_data_of_the_same_name_are_refused(tmp_path):
    list(grid(grid_file(tmp_path, 'seeds = [0]\naxes.method = ["local"]'), tmp_path).advance())
    arrays = dict(np.load(tmp_path / "tiny.npz"))
    np.savez(tmp_path / "tiny.npz", **{**arrays, "train_x": arrays["train_x"][::-1]})
    more = grid(grid_file(tmp_path, 'seeds = [0, 1]\naxes.method = ["local"]'), tmp_path)
    with pytest.raises(UserError, match="other data"):
        list(more.advance())


WILD = """seeds = [0, 1, 2]
[axes.method.wilder]
method = {name = "local"}
train = {lr = 1e12}
[axes.method.wild]
method = {name = "fedproto", lam = 1e38}
[axes.method.tame]
method = {name = "fedproto"}
"""


def test_runs_that_diverge_leave_the_others_alone(tmp_path):
    file = grid_file(tmp_path, WILD)
    out = tmp_path / "out"
    done = compare(file, out)
    cells = {cell["method"]: cell for cell in table(out)["cells"]}
    assert [cells[method]["diverged"] for method in ("wilder", "wild", "tame")] == [3, 3, 0]
    assert cells["wild"]["own"] is None
    assert cells["tame"]["own"]["count"] == 3
    assert "diverged" in done.stdout
    assert "lower train.lr or method.lam" in done.stderr
    for run in table(out)["runs"]:
        if run["method"] == "tame":
            path = RunDirectory.open(out / "grid" / run["directory"]).path
            assert [record["round"] for record in records(path)] == [1, 2, 3, 4]
    before = states(out)
    assert compare(file, out).stdout == done.stdout
    assert states(out) == before


def test_one_of_a_stack_diverges_and_the_stack_goes_on(tmp_path):
    file = grid_file(tmp_path, WILD.replace("wilder", "wide").replace("lr = 1e12", "lr = 0.01"))
    work = grid(file, tmp_path / "out")
    steps = [step.what for step in work.advance()]
    assert [len(stack.experiments) for stack in work.stacks] == [3, 6]
    assert steps == ["local × 3"] * 4 + ["fedproto × 6"] + ["fedproto × 3"] * 3
    assert work.completed() == work.rounds


def test_stacks_are_bounded_and_even(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0, 1, 2, 3, 4, 5, 6]\naxes.method = ["local", "fedproto"]')
    sizes = [
        [len(stack.experiments) for stack in grid(file, tmp_path, most).stacks]
        for most in (200, 15, 1)
    ]
    assert sizes == [[7, 7], [3, 3, 1, 3, 3, 1], [1] * 14]


def test_a_stack_too_large_for_the_bound_is_taken_up_in_parts(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0, 1, 2, 3]\naxes.method = ["fedproto"]')
    going = grid(file, tmp_path / "out").advance()
    for _ in range(3):
        next(going)
    del going
    parts = grid(file, tmp_path / "out", 10)
    assert [len(stack.runs) for stack in parts.stacks] == [2, 2]
    assert [step.completed for step in parts.advance()] == [6, 8, 14, 16]
    assert all(run.result() for run in found(tmp_path / "out").values())


def test_models_can_be_left_out(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0]\naxes.method = ["local"]')
    compare(file, tmp_path / "out", "--no-models")
    (run,) = found(tmp_path / "out").values()
    assert not run.checkpoints()
    assert "1 of them done" in compare(file, tmp_path / "out").stderr


def test_restacking_what_is_stacked_so_writes_nothing(whole):
    _, out = whole
    runs = [run for run in found(out).values() if run.experiment().method.exchanges]
    before = states(out)
    restack(runs)
    assert states(out) == before


def test_a_grid_that_another_process_works_on_is_left_alone(tmp_path, whole):
    file, _ = whole
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / ".lock").touch()
    lock = locks.acquire(tmp_path / "grid" / ".lock", "", "")
    done = compare(file, tmp_path, expect=2)
    os.close(lock)
    assert f"{tmp_path / 'grid' / '.lock'} is in use by another process: wait for it" in done.stderr
    # What has ended is looked up under the lock: until then the other process may end more.
    assert "to train" not in done.stderr
    assert not found(tmp_path)


def test_a_run_of_a_grid_is_its_own_while_it_trains(tmp_path):
    """Nobody else can resume it; the grid lets it go when it has ended."""
    training = grid(
        grid_file(tmp_path, 'seeds = [0, 1]\naxes.method = ["local"]'), tmp_path / "out"
    )
    next(steps := training.advance())
    session = training.session
    for run in session.runs:
        assert (
            "is in use by this program itself"
            in fedrfq("resume", run.path, "--device", "cpu", expect=2).stderr
        )
    list(steps)
    assert not any(locks.is_locked(ended.run.path) for ended in training.ended.values())


def test_a_finished_run_whose_records_are_not_whole_is_not_tabulated(tmp_path, whole):
    file, out = whole
    shutil.copytree(out / "grid", tmp_path / "grid")
    run = next(iter(found(tmp_path).values()))
    lines = (run.path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run.path / "rounds.jsonl").write_text("".join(lines[:-1]))
    done = compare(file, tmp_path, expect=2)
    assert f"{run.path} lacks complete records of its 4 rounds" in done.stderr
