"""Damaged files and wrong settings: one line says what to do, and nothing is lost."""

import hashlib
import re
import resource
import subprocess

import pytest

from fedrfq import UserError
from fedrfq.experiment import load
from fedrfq.files import toml
from fedrfq.runs.session import Session
from support.command import (
    CPU,
    SMALL,
    command,
    damaged,
    fedrfq,
    only_run,
    records,
    sets,
    small_session,
)


def test_checkpoint_of_another_experiment_is_refused(tmp_path):
    session = small_session(tmp_path, "rounds=2")
    list(session.advance())
    session.close()
    path = session.runs[0].path / "experiment.toml"
    path.write_text(path.read_text().replace("lam = 1.0", "lam = 0.5"))
    with pytest.raises(UserError, match="checkpoint of another experiment"):
        Session.resume(session.runs[0].path, CPU)


def test_changed_data_is_noticed(tmp_path):
    session = small_session(tmp_path, "rounds=2")
    session.close()
    path = session.runs[0].path / "environment.json"
    path.write_text(path.read_text().replace(session.loop.dataset.sha256, "0" * 64))
    with pytest.raises(UserError, match="the data changed"):
        Session.resume(session.runs[0].path, CPU)


def test_not_a_run_directory(tmp_path):
    assert "not a run directory" in fedrfq("resume", tmp_path, expect=2).stderr


def test_nan_loss_names_client_round_and_checkpoint(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "train.lr=1e30"]), "--out", tmp_path, expect=2)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "client" in line
    assert "round" in line
    assert "checkpoint" in line
    assert "Traceback" not in done.stderr


def test_full_disk_is_one_line_and_loses_nothing(tmp_path):
    """A limit on the size of files acts like a full disk: writes fail in the middle of the run."""

    def limit() -> None:
        # Records fit, the checkpoint does not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    done = subprocess.run(
        command("run", *sets(SMALL), "--out", tmp_path),
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    path = only_run(tmp_path).path
    assert not list(path.rglob("*.tmp"))
    assert not list((path / "checkpoints").iterdir())
    fedrfq("resume", path)
    assert len(records(path)) == 8


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["method.lambda=1"], "did you mean lam"),
        (["train.lr=fast"], "train.lr must be a number"),
        (["partition.ways=11"], "10 classes"),
        (["partition.shots=0"], "shots"),
        (["pool.kernel=3"], "larger than the 2×25 map"),
        (["data.name=nowhere"], "nowhere"),
        (["clients=500"], "lower clients to"),
        (["method.name=local", "pool.name=avg"], "does not pool"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(tmp_path, settings, says):
    done = fedrfq("run", *sets(settings), "--out", tmp_path / "out", expect=2)
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rounds.jsonl", "garbage\n"),
        ("rounds.jsonl", "[1]\n"),
        ("rounds.jsonl", ""),
        ("clients.csv", ""),
        ("clients.csv", "round,client\n1,2\n"),
        ("environment.json", '{"stack": 3}'),
        ("environment.json", "{"),
        ("environment.json", "[1]"),
        ("environment.json", '{"stack": ["."], "versions": null, "data": {}}'),
        ("environment.json", '{"stack": ["."], "data": 3}'),
        ("environment.json", '{"stack": ["a\\u0000b"]}'),
        ("environment.json", f'{{"stack": ["{"x" * 256}"]}}'),
        ("experiment.toml", "rounds = "),
    ],
)
def test_a_damaged_directory_is_one_line(whole, tmp_path, name, text):
    done = fedrfq("resume", damaged(whole, tmp_path, name, text), expect=2)
    assert done.stderr.startswith(("error: ", "note: "))
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["show"], ["resume"], ["report"], ["predict", "0", "a.png"], ["export", "0"]]
)
def test_data_that_can_have_no_such_name_are_one_line(whole, tmp_path, arguments):
    """A part of a path has 255 bytes at most."""
    text = (
        (whole / "experiment.toml")
        .read_text()
        .replace('name = "mnist5k"\n', f'name = "{"x" * 256}"\n', 1)
    )
    copy = damaged(whole, tmp_path, "experiment.toml", text)
    done = fedrfq(arguments[0], copy, *arguments[1:], expect=2)
    assert done.stderr.count("\n") == 1
    assert "File name too long); check data.name" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["show"], ["report"], ["committee", "status"], ["compare"], ["data", "info"]]
)
def test_a_path_that_is_too_long_is_one_line(arguments):
    done = fedrfq(*arguments, "x" * 256, expect=2)
    assert done.stderr.count("\n") == 1
    assert "File name too long" in done.stderr


def test_records_shorter_than_the_checkpoint_are_refused(whole, tmp_path):
    kept = "".join(line + "\n" for line in (whole / "rounds.jsonl").read_text().splitlines()[:4])
    done = fedrfq("resume", damaged(whole, tmp_path, "rounds.jsonl", kept), expect=2)
    assert "records of 4 rounds but a checkpoint of round 8" in done.stderr


def test_a_loss_may_be_as_large_as_a_float32_and_no_larger(whole, tmp_path):
    """Training with a large λ may reach such losses and recover: the run is not damaged."""
    for loss, code in (("3.4e38", 0), ("3.4e39", 2)):
        text = re.sub(r'"loss": [0-9.e-]+', f'"loss": {loss}', (whole / "rounds.jsonl").read_text())
        done = fedrfq("resume", damaged(whole, tmp_path / loss, "rounds.jsonl", text), expect=code)
        assert ("loss is not float" in done.stderr) == bool(code)


def test_a_truncated_checkpoint_and_foreign_files(whole, tmp_path):
    copy = damaged(whole, tmp_path, "checkpoints/round-abc.safetensors", "not ours")
    assert "8 of 8" in fedrfq("resume", copy).stdout
    checkpoint = copy / "checkpoints" / "round-000008.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert "not a usable safetensors file" in fedrfq("resume", copy, expect=2).stderr


def test_garbage_after_the_checkpoint_does_not_matter(whole, tmp_path):
    text = (whole / "rounds.jsonl").read_text() + "\0\0\0\n"
    assert "8 of 8" in fedrfq("resume", damaged(whole, tmp_path, "rounds.jsonl", text)).stdout


def test_out_of_memory_is_one_line(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "model.channels=900000000"]), "--out", tmp_path, expect=2)
    assert "out of memory" in done.stderr.splitlines()[-1]


def test_a_run_from_before_there_were_committees_is_shown_and_resumed(tmp_path):
    """Its experiment has no such section, and its records have no such columns."""
    session = small_session(tmp_path, "rounds=4")
    next(iter(session.advance()))
    session.checkpoint()
    session.close()
    path = session.runs[0].path
    for name in ("view", "leader", "committee_messages", "committee_bytes", "evidence"):
        text = (path / "rounds.jsonl").read_text()
        (path / "rounds.jsonl").write_text(text.replace(f'"{name}": null, ', ""))
    text = (path / "experiment.toml").read_text()
    assert text.endswith('\n[committee]\nname = "direct"\n')
    (path / "experiment.toml").write_text(text.removesuffix('\n[committee]\nname = "direct"\n'))
    fedrfq("show", path)
    fedrfq("resume", path)
    assert len(records(path)) == 4


def test_the_hash_of_an_experiment_without_a_committee_is_what_it_was():
    """So that its checkpoints are still its own."""
    assert "committee" in load().table()
    older = {key: value for key, value in load().table().items() if key != "committee"}
    assert load().hash() == hashlib.sha256(toml.dump(older).encode()).hexdigest()
    assert load(sets=["committee.name=simulated"]).hash() != load().hash()
