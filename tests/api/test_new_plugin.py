"""`fedrfq new`: what it writes runs at once, keeps its contract, and passes its own test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedrfq.api.new_plugin import example_settings, write
from fedrfq.plugins import REGISTRIES
from support.command import fedrfq as command
from support.command import only_run, sets
from support.outside import new_process

# The smallest experiment; what a kind needs itself comes after it.
TINY = [
    *("clients=4", "rounds=2", "model.name=mlp", "checkpoint=1"),
    *("partition.shots=4", "partition.test_shots=3"),
]


@pytest.fixture(autouse=True)
def _data(apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("kind", REGISTRIES)
def test_what_is_written_runs(kind: str, tmp_path: Path) -> None:
    said = command("new", kind, "my-own", "--out", tmp_path).stdout
    file = tmp_path / "my_own.py"
    assert "run --plugin" in said
    assert "example" not in file.read_text().lower()
    new_process()
    settings = TINY if kind != "partition" else TINY[:4]
    command(
        *("run", "--plugin", file, *sets(settings), *example_settings(kind, "my-own")),
        *("--out", tmp_path / "runs"),
    )
    assert only_run(tmp_path / "runs").experiment().table()["plugins"][0]["name"] == "my_own.py"


def test_the_tests_that_are_written_pass(tmp_path: Path) -> None:
    """In one new process for all kinds, because each would load PyTorch."""
    for kind in REGISTRIES:
        command("new", kind, f"own-{kind}", "--out", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert f"{2 * len(REGISTRIES)} passed" in done.stdout


def test_nothing_is_overwritten_and_names_are_checked(tmp_path: Path) -> None:
    command("new", "method", "own", "--out", tmp_path)
    before = (tmp_path / "own.py").read_bytes()
    error = command("new", "attack", "own", "--out", tmp_path, expect=2).stderr
    assert "own.py is there already: choose another name" in error
    assert (tmp_path / "own.py").read_bytes() == before
    (tmp_path / "own.py").unlink()
    assert (
        "test_own.py is there"
        in command("new", "attack", "own", "--out", tmp_path, expect=2).stderr
    )
    assert "did you mean method" in command("new", "methods", "x", expect=2).stderr
    assert "cannot be named 'My own'" in command("new", "method", "My own", expect=2).stderr
    assert "is fedrfq's own" in command("new", "method", "fedavg", expect=2).stderr


def test_a_file_that_comes_in_between_is_not_written_to(tmp_path: Path) -> None:
    """A link to nothing is such a file: it is not there when one looks, and then it is."""
    (tmp_path / "own.py").symlink_to("elsewhere.py")
    with pytest.raises(FileExistsError):
        write("method", "own", tmp_path)
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_name_may_begin_with_a_digit(tmp_path: Path) -> None:
    command("new", "rule", "3-of-4", "--out", tmp_path)
    assert "class Own3Of4(Rule)" in (tmp_path / "3_of_4.py").read_text()
