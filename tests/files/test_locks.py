"""Only one process at a time has a folder, for as long as it lives; so it is with runs."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedrfq import experiment, run
from fedrfq.errors import UserError
from fedrfq.files.locks import acquire, is_locked
from fedrfq.runs.session import Session
from support.command import SMALL, fedrfq, sets, small_session, started

HOLD = """
import sys
from pathlib import Path
from fedrfq.files.locks import acquire
acquire(Path(sys.argv[1]), "", "")
print(flush=True)
input()
"""


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_folder_is_had_by_one_until_its_handle_is_closed(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    lock = acquire(tmp_path, "a folder", "wait")
    assert is_locked(tmp_path)
    with pytest.raises(UserError, match="is in use by another process: wait"):
        acquire(tmp_path, "a folder", "wait")
    os.close(lock)
    assert not is_locked(tmp_path)
    os.close(acquire(tmp_path, "a folder", "wait"))
    assert not list(tmp_path.iterdir())


def test_a_lock_goes_with_its_process_however_that_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_locked(tmp_path)
        holder.kill()
    assert not is_locked(tmp_path)


def test_what_cannot_be_opened_or_locked_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UserError, match=r"cannot open .* \(No such file or directory\): name a folder"
    ):
        acquire(tmp_path / "none", "a folder", "wait")
    # Of this path, as of one in a folder that may not be entered, not even its kind can be asked.
    with pytest.raises(UserError, match=r"cannot open .* \(File name too long\): name a folder"):
        acquire(tmp_path / ("x" * 300), "a folder", "wait")

    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"cannot lock .* \(No locks available\)"):
        acquire(tmp_path, "a folder", "wait")
    # A run works all the same.
    small_session(tmp_path).close()


def test_a_run_that_another_process_trains_is_shown_and_left_alone(tmp_path: Path) -> None:
    process, path = started(tmp_path, [*SMALL, "rounds=100"], 1)
    try:
        process.send_signal(signal.SIGSTOP)
        before = contents(path)
        errors = fedrfq("resume", path, expect=2).stderr
        assert contents(path) == before
        assert "of 100" in fedrfq("show", path).stdout
    finally:
        process.kill()
        process.communicate()
    remedy = "it is training this run; wait until it ends, or stop it"
    assert errors.splitlines()[-1] == f"error: {path} is in use by another process: {remedy}"
    assert not is_locked(path)


def test_runs_that_are_stacked_are_had_together(tmp_path: Path) -> None:
    """Whichever of them is named, and whichever another process has."""
    seeds = ("--seed", 0, "--seed", 1)
    fedrfq("run", *sets([*SMALL, "rounds=2"]), *seeds, "--out", tmp_path)
    one, other = sorted(tmp_path.glob("*/*"))
    assert not is_locked(one)
    lock = acquire(other, "", "")
    assert f"{other} is in use" in fedrfq("resume", one, expect=2).stderr
    assert not is_locked(one)
    os.close(lock)
    fedrfq("resume", one)
    assert not is_locked(one)


def test_a_session_has_its_runs_until_it_is_closed_or_forgotten(tmp_path: Path) -> None:
    session = small_session(tmp_path)
    path = session.runs[0].path
    assert is_locked(path)
    session.close()
    assert not is_locked(path)
    session = small_session(tmp_path)
    path = session.runs[0].path
    assert is_locked(path)
    del session
    assert not is_locked(path)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Return a list that keeps every session that has finished, so that none is deleted."""
    kept = list[Session]()
    finish = Session.finish

    def remember(session: Session) -> list[dict[str, Any]]:
        assert all(is_locked(run_.path) for run_ in session.runs)
        kept.append(session)
        return finish(session)

    monkeypatch.setattr(Session, "finish", remember)
    return kept


def test_commands_have_a_run_to_its_end_and_no_longer(
    tmp_path: Path, remembered: list[Session]
) -> None:
    fedrfq("run", *sets([*SMALL, "rounds=1"]), "--out", tmp_path)
    path = remembered[0].runs[0].path
    assert not is_locked(path)
    fedrfq("resume", path)
    assert not is_locked(path)
    assert len(remembered) == 2


def test_a_run_from_python_is_had_to_its_end_and_no_longer(
    tmp_path: Path, remembered: list[Session]
) -> None:
    assert len(list(run(experiment.load(sets=[*SMALL, "rounds=1"]), "cpu", tmp_path))) == 1
    assert not is_locked(remembered[0].runs[0].path)
