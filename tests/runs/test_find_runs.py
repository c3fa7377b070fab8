"""Which run is the newest, how far runs are, and how their prototypes moved."""

import json
import os
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedrfq.errors import UserError
from fedrfq.files.locks import exclusive
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.runs import trail
from fedrfq.runs.find_runs import named, newest_first
from fedrfq.runs.progress import RunProgress, duration
from fedrfq.runs.session import Session
from support.command import CPU, fedrfq, small_session


def copies(whole, folder):
    """Copy the run to two directories of other times; return the newer one."""
    names = ("20250101-000000-seed0-aaaaaa", "20260101-000000-seed0-aaaaaa")
    for name in names:
        shutil.copytree(whole, folder / "runs" / "x" / name)
    return Path("runs") / "x" / names[1]


def test_latest_is_the_newest_run_wherever_one_is_asked_for(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no such folder here"):
        named(Path("latest"))
    newest = copies(whole, tmp_path)
    # A directory that bears no time counts from when it was written.
    shutil.copytree(whole, tmp_path / "runs" / "x" / "mine")
    os.utime(tmp_path / "runs" / "x" / "mine" / "experiment.toml", (0, 0))
    assert named(Path("latest")) == newest
    assert [run.name[:4] for run in newest_first(Path("runs/x").iterdir())] == [
        "2026",
        "2025",
        "mine",
    ]
    fedrfq("show", "latest")
    (newest / "accuracy.png").unlink()
    fedrfq("export", "latest", 0)
    assert (newest / "client-0.safetensors").is_file()
    # What really bears that name is meant first.
    (tmp_path / "latest").mkdir()
    assert named(Path("latest")) == Path("latest")


def test_runs_are_listed_newest_first_and_hostile_ones_do_no_harm(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copies(whole, tmp_path)
    odd = tmp_path / "runs" / "x" / "[red]odd\x1b[31m"
    odd.mkdir()
    (odd / "experiment.toml").write_text("method = 3\nrounds = 'x'\nclients = -1\n")
    (odd / "rounds.jsonl").write_text("[]\nnonsense\n" + '{"round": 1e400, "seconds": "x"}\n')
    os.utime(odd / "experiment.toml", (0, 0))
    listed = fedrfq("runs").stdout
    assert listed.index("2026-01-01") < listed.index("2025-01-01") < listed.index("[red]odd")
    assert "\x1b" not in listed
    assert listed.count("8 of 8") == 2
    assert "the newest 1 of 3 runs" in fedrfq("runs", "--most", 1).stdout


def test_a_run_that_failed_is_listed_with_its_error_until_it_goes_on(tmp_path, monkeypatch):
    with closing(small_session(tmp_path)) as session:
        rounds = session.advance()
        next(rounds)
        session.checkpoint()

        def fail(state):
            raise ValueError("no \x1b[2Jluck")

        monkeypatch.setattr(session.loop, "advance", fail)
        with pytest.raises(ValueError, match="luck"):
            next(rounds)
        (run,) = session.runs
    assert RunProgress.read(run.path).state == "failed: ValueError: no  [2Jluck"
    assert "failed: ValueError" in " ".join(fedrfq("runs", tmp_path).stdout.split())
    (run.path / "failed.json").write_text("[]")
    assert RunProgress.read(run.path).state == "failed: failed.json cannot be read"
    monkeypatch.undo()
    with closing(Session.resume(run.path, CPU)) as session:
        next(session.advance())
    assert RunProgress.read(run.path).state == "stopped"


def test_a_run_that_a_process_trains_is_running(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    assert RunProgress.read(run).state == "finished"
    (run / "result.json").unlink()
    assert RunProgress.read(run).state == "stopped"
    lines = [json.dumps({"round": n, "seconds": 2.0, "accuracy_mean": 50.0}) for n in range(1, 4)]
    (run / "rounds.jsonl").write_text("\n".join(lines) + '\n{"round": 4')
    with exclusive(run, "", ""):
        progress = RunProgress.read(run)
    assert (progress.state, progress.done, progress.seconds_left) == ("running", 3, 10.0)
    assert [duration(s) for s in (None, 5.4, 65, 7265)] == ["–", "5 s", "1 min 5 s", "2 h 1 min"]


def test_a_run_notes_how_its_prototypes_moved_and_resumes_without_a_trace(whole, tmp_path):
    noted = trail.read(whole)
    assert [done.round for done in noted] == list(range(1, 9))
    session = small_session(tmp_path)
    with closing(session):
        for _, outcomes in zip(range(3), session.advance(), strict=False):
            assert outcomes
    (run,) = session.runs
    assert len(trail.read(run.path)) == 3
    # The last checkpoint is of round 2: round 3 is trained again.
    with closing(Session.resume(run.path, CPU)) as again:
        assert len(trail.read(run.path)) == 2
        for _ in again.advance():
            pass
    assert (run.path / trail.NAME).read_bytes() == (whole / trail.NAME).read_bytes()


def test_of_many_rounds_fifty_are_noted(tmp_path):
    globals_ = Globals(np.array([False, True]), np.array([[0, 0], [3, -4]]))
    for number in range(1, 101):
        trail.append(tmp_path, 100, number, globals_)
    noted = trail.read(tmp_path)
    assert [done.round for done in noted] == [1, *range(2, 101, 2)]
    assert noted[0].globals_.values_JV.tolist() == [[0, 0], [3, -4]]
    assert noted[0].globals_.present_J.tolist() == [False, True]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"round": 1, "classes": 2, "labels": [2], "values": [[1]]}',
        '{"round": 1, "classes": 2, "labels": [0, 1], "values": [[1]]}',
        '{"round": 1, "classes": 1000000000000, "labels": [0], "values": [[1]]}',
        '{"round": 1, "classes": 2, "labels": [0], "values": [[1e300]]}',
        '{"round": 1, "classes": 2, "labels": [0], "values": [[99999999999999]]}',
    ],
)
def test_a_trail_that_nobody_wrote_is_refused(tmp_path, line):
    (tmp_path / trail.NAME).write_text(line + "\n")
    with pytest.raises(UserError, match=r"trail\.jsonl"):
        trail.read(tmp_path)
