"""Commands import late: `--help` is quick, and what runs on a server needs no PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedrfq.committee import Simulated
from support.committees import written
from support.federations import founded, process, status, without_torch
from support.paths import ROOT

HEAVY = {"torch", "sklearn", "scipy", "matplotlib", "nacl", "cryptography"}


def test_the_command_line_itself_imports_nothing_heavy() -> None:
    script = "import sys, fedrfq.cli.main; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert {"fedrfq", "typer"} <= set(done.stdout.split())
    assert not HEAVY & set(done.stdout.split())


def test_importing_the_package_is_a_moment() -> None:
    """Ctrl-C in it shows a traceback: only after it does `fedrfq.cli.start` take the signal."""
    script = "import sys; before = set(sys.modules); import fedrfq; print(*set(sys.modules)-before)"
    # Without site, where some installation may have imported anything.
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "fedrfq" in done.stdout.split()
    assert "typing" not in done.stdout.split()


@pytest.mark.parametrize("module", ["fedrfq", "fedrfq.cli"])
def test_the_program_is_a_module_too(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("fedrfq ")


@pytest.mark.parametrize(
    "command",
    ["", "run", "server", "client", "keys", "doctor", "committee", "verify", "evidence", "compare"],
)
def test_help_needs_no_torch(command: str) -> None:
    done = subprocess.run(
        without_torch(*command.split(), "--help"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_needs_torch_says_so_without_it() -> None:
    """This shows that the tests below would fail if their commands needed torch."""
    done = subprocess.run(
        without_torch("run"), capture_output=True, text=True, timeout=60, check=False
    )
    assert "torch" in done.stderr
    assert done.returncode != 0


def test_keys_are_made_without_torch(tmp_path: Path) -> None:
    arguments = without_torch("keys", "new", tmp_path / "own", "--name", "alice")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_server_runs_and_is_looked_at_without_torch(tmp_path: Path) -> None:
    founded(tmp_path, servers=1, clients=1)
    with process(tmp_path / "server-0"):
        assert status(tmp_path / "server-0")["round"] == 1
        for arguments in (("committee", "status", tmp_path), ("doctor", tmp_path / "client-0")):
            done = subprocess.run(
                without_torch(*arguments), capture_output=True, text=True, timeout=60, check=False
            )
            assert "torch" not in done.stderr
            assert "server-0" in done.stdout


@pytest.mark.parametrize("command", ["verify", "evidence"])
def test_a_log_is_checked_without_torch(command: str, tmp_path: Path) -> None:
    path = written(tmp_path / "run", Simulated(4, 1, "equivocate"))
    done = subprocess.run(
        without_torch(command, path), capture_output=True, text=True, timeout=60, check=False
    )
    assert "torch" not in done.stderr
    assert done.stdout
