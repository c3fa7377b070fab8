"""Plugins whose code fails: one line that names the file and line, and a run that is kept."""

from __future__ import annotations

import io
import signal
import subprocess
import threading
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest

import fedrfq
from fedrfq.errors import UserError
from fedrfq.plugins import loading
from support.command import command as words
from support.command import fedrfq as command
from support.command import only_run, sets
from support.outside import PULL, new_process, written

TINY = ["clients=4", "rounds=4", "model.name=mlp", "partition.shots=4", "partition.test_shots=3"]
# It fails in the third round, and only where a file says so.
FRAGILE = PULL.replace(
    "class Pull(FedProto):\n",
    "class Pull(FedProto):\n"
    "    def guide(self, number, targets, own):\n"
    "        if number == 3 and __import__('os').path.exists({marker!r}):\n"
    "            raise RuntimeError('no\\nmore')\n"
    "        return super().guide(number, targets, own)\n",
)


def failed(tmp_path: Path, *more: str) -> tuple[str, Path]:
    """Return what a run says whose plugin fails in its third round, and where the run is."""
    marker = tmp_path / "fail"
    marker.touch()
    path = written(tmp_path, "fragile.py", FRAGILE.format(marker=str(marker)))
    settings = sets([*TINY, "method.name=pull"])
    out = tmp_path / "runs"
    said = command("run", "--plugin", path, *settings, "--out", out, *more, expect=2).stderr
    return said, only_run(out).path


def test_a_failing_plugin_is_named_on_one_line_and_the_run_goes_on_later(tmp_path: Path) -> None:
    said, run = failed(tmp_path)
    # The bar of progress, and one line.
    assert said.count("\n") == 2
    assert "the plugin fails in fragile.py, line 11: RuntimeError: no; the run is kept" in said
    assert "after round 2" in said
    assert list(only_run(tmp_path / "runs").checkpoints()) == [2]
    assert "resume" in said
    trace = (run / "traceback.txt").read_text()
    assert "Traceback (most recent call last)" in trace
    assert "in guide" in trace
    (tmp_path / "fail").unlink()
    new_process()
    command("resume", run)
    assert only_run(tmp_path / "runs").result() is not None


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    said, _ = failed(tmp_path, "--debug")
    assert "Traceback" in said
    assert "in guide" in said
    assert "error: the plugin fails in" in said


def test_other_commands_name_a_failing_plugin_too(tmp_path: Path) -> None:
    """Also where the kind of error is one that is otherwise about memory or paths."""
    for error in ("RuntimeError('no')", "OSError('no')", "KeyError('no')"):
        text = PULL + f"    def __post_init__(self):\n        raise {error}\n"
        path = written(tmp_path, "pull.py", text + f"# {error}\n")
        new_process()
        arguments = ("config", "--plugin", path, "--set", "method.name=pull")
        said = command(*arguments, expect=2).stderr
        assert "the plugin fails in pull.py, line 12" in said
        assert said.count("\n") == 1
    new_process()
    with pytest.raises(KeyError):
        command(*arguments, "--debug")


def test_a_plugin_that_ends_the_program_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "exit.py", "import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match=r"exit\.py, line 2: SystemExit"):
        fedrfq.load_plugin(path)


def test_a_plugin_that_hangs_is_named_and_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PATIENCE_S", 0.05)
    path = written(tmp_path, "slow.py", "import time\ntime.sleep(0.5)\n" + PULL)
    said = io.StringIO()
    with redirect_stderr(said):
        fedrfq.load_plugin(path)
    assert f"note: still loading {path} in line 2; Ctrl-C stops" in said.getvalue()
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_an_interrupt_ends_a_hanging_plugin(tmp_path: Path) -> None:
    marker = tmp_path / "began"
    text = f"import time\nopen({str(marker)!r}, 'w')\ntime.sleep(60)\n"
    path = written(tmp_path, "hang.py", text)
    process = subprocess.Popen(
        words("list", "--plugin", path), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
