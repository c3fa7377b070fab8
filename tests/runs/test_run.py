"""Start, stop and resume runs as users do: real processes, real signals, real files."""

import json
import shlex
import signal
import subprocess
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from fedrfq import UserError, data, experiment, run
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import pick_device
from support.command import (
    PAUSE,
    SMALL,
    assert_same_run,
    clients,
    command,
    fedrfq,
    of_every_round,
    only_run,
    records,
    sets,
    small_session,
    started,
)


def test_json_is_the_last_line_and_says_what_it_must(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "rounds=2"]), "--out", tmp_path, "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    needed = [
        "method",
        "data",
        "rounds",
        "accuracy_mean",
        "accuracy_std",
        "prototype_accuracy_mean",
        "prototype_failure",
        "silhouette",
        "parameters_per_round",
        "bytes_per_round",
        "samples_per_second",
        "seconds",
        "run_dir",
    ]
    assert set(needed) <= set(result)
    assert all(result[key] is not None for key in needed)
    assert result["method"] == "fedrfq"
    assert result["rounds"] == 2
    found = RunDirectory.open(Path(result["run_dir"]))
    assert result["parameters_per_round"] == 24 * sum(
        int(row["classes"]) for row in clients(found.path)[-6:]
    )


def test_directory_holds_what_was_run(whole):
    found = RunDirectory.open(whole)
    environment = found.environment()
    assert found.experiment().partition.shots == 8
    assert environment["data"]["sha256"] == data.load("mnist5k").sha256
    assert environment["versions"]["torch"] == version("torch")
    assert environment["partition"]["classes_mean"] > 1
    assert [record.round for record in found.rounds()] == list(range(1, 9))
    assert len(clients(whole)) == 8 * 6
    assert list(found.checkpoints()) == [8]
    assert -1 <= found.result()["silhouette"] <= 1


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_kill_9_then_resume_ends_as_if_never_stopped(tmp_path, whole, rounds):
    process, path = started(tmp_path, SMALL, rounds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # As if it had been killed in the middle of a line.
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 99, "accur')
    fedrfq("resume", path)
    assert_same_run(path, whole)


def test_a_run_from_before_the_test_on_all_classes_goes_on_with_its_columns(tmp_path, whole):
    session = small_session(tmp_path)
    for _ in range(2):
        next(iter(session.advance()))
    session.close()
    (run,) = session.runs
    lines = [
        ",".join(line.split(",")[:14])
        for line in (run.path / "clients.csv").read_text().splitlines()
    ]
    (run.path / "clients.csv").write_text("".join(f"{line}\n" for line in lines))
    fedrfq("resume", run.path)
    first = [{key: row[key] for key in list(row)[:14]} for row in clients(whole)]
    assert clients(run.path) == first
    assert records(run.path) == records(whole)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, whole, stop):
    process, path = started(tmp_path, [*SMALL, "checkpoint=100"], 2)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"continue with: {shlex.join(command('resume', path))}" in errors
    assert list(RunDirectory.open(path).checkpoints()) == [len(records(path))]
    fedrfq("resume", path)
    # The two runs make checkpoints, and test on all classes, in different rounds.
    assert of_every_round(path) == of_every_round(whole)
    assert records(path)[-1] == records(whole)[-1]


def test_stacked_seeds_killed_and_resumed_together(tmp_path):
    fedrfq("run", *sets(SMALL), "--out", tmp_path / "whole", "--seed", 0, "--seed", 1)
    process, path = started(tmp_path / "killed", SMALL, 3, "--seed", 0, "--seed", 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    fedrfq("resume", path)
    uninterrupted = sorted((tmp_path / "whole").glob("*/*"))
    killed = sorted((tmp_path / "killed").glob("*/*"))
    for one, other in zip(uninterrupted, killed, strict=True):
        assert_same_run(one, other)


def test_same_command_same_bytes(tmp_path, whole):
    fedrfq("run", *sets(SMALL), "--out", tmp_path)
    assert_same_run(only_run(tmp_path).path, whole)


def test_resuming_a_finished_run_changes_nothing(whole):
    before = records(whole)
    assert "8 of 8" in fedrfq("resume", whole).stdout
    assert records(whole) == before


def test_participation_resumes_too(tmp_path):
    settings = [*SMALL, "participation=0.5"]
    fedrfq("run", *sets(settings), "--out", tmp_path / "whole")
    process, path = started(tmp_path / "killed", settings, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    fedrfq("resume", path)
    assert_same_run(path, only_run(tmp_path / "whole").path)


def test_dry_run_shows_the_partition_and_writes_nothing(tmp_path):
    done = fedrfq("run", *sets(SMALL), "--out", tmp_path / "out", "--dry-run")
    assert "training samples" in done.stdout
    assert "expected time" in done.stdout
    assert not (tmp_path / "out").exists()


def test_config_can_be_run_and_gives_the_same(tmp_path, whole):
    file = tmp_path / "mine.toml"
    file.write_text(fedrfq("config", *sets(SMALL)).stdout)
    fedrfq("run", file, "--out", tmp_path / "out")
    assert_same_run(only_run(tmp_path / "out").path, whole)


def test_show_draws_the_curve(whole):
    (whole / "accuracy.png").unlink(missing_ok=True)
    assert "accuracy, own head" in fedrfq("show", whole).stdout
    assert (whole / "accuracy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("what", ["methods", "models", "data", "partitions", "pools"])
def test_lists(what):
    assert what in fedrfq("list", what).stdout


def test_list_of_nonsense():
    assert "methods" in fedrfq("list", "cheeses", expect=2).stderr


def test_five_lines_of_python(tmp_path):
    shown = [
        record.accuracy_mean
        for record in run(experiment.load(sets=[*SMALL, "rounds=2"]), "cpu", tmp_path)
    ]
    assert len(shown) == 2
    assert only_run(tmp_path).result() is not None


def test_devices():
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="auto, cpu, cuda"):
        pick_device("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="use --device cpu"):
            pick_device("cuda")


def test_help_gives_an_example():
    for name in ("run", "resume", "show", "config", "list", "predict", "export"):
        assert "Example: fedrfq" in fedrfq(name, "--help").stdout


def test_the_installed_command_answers():
    done = subprocess.run(command("config"), capture_output=True, text=True, timeout=60)
    assert tomllib.loads(done.stdout)["method"]["name"] == "fedrfq"


def test_ctrl_c_ends_a_long_round_with_its_step(tmp_path):
    """A long round is interrupted in the middle; the checkpoint of the round before is there."""
    process, path = started(tmp_path, [*SMALL, "rounds=2", "checkpoint=1", "train.epochs=80"], 1)
    time.sleep(PAUSE + 0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped after round 1" in errors
    assert list(RunDirectory.open(path).checkpoints()) == [1]


def test_a_batch_larger_than_any_client_costs_nothing_more(tmp_path):
    accuracies = []
    for size in (40, 10**9):
        settings = sets([*SMALL, "rounds=1", f"train.batch_size={size}"])
        done = fedrfq("run", *settings, "--out", tmp_path / str(size), "--json")
        accuracies.append(json.loads(done.stdout.splitlines()[-1])["accuracy_mean"])
    assert accuracies[0] == accuracies[1]


def test_a_round_recorded_but_interrupted_is_recorded_once(tmp_path):
    session = small_session(tmp_path, "rounds=3")
    next(session.advance())
    session.runs[0].append(session.loop.advance(session.state)[1][0])  # and then the interrupt
    list(session.advance())
    assert [record.round for record in session.runs[0].rounds()] == [1, 2, 3]
