"""Build the wheel and try its smallest run on every Python at hand: `make test-wheel`.

On each Python the base package, without PyTorch, must verify a recorded run and run a server. Where
a PyTorch is at hand (--train), the extra `train` is installed too and the smallest run is trained.

    python tests/project/wheel.py
    python tests/project/wheel.py --python python3.12 --python python3.13 --train python3.11
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
SMALLEST = ["rounds=1", "clients=2", "partition.shots=5", "partition.test_shots=5"]
COMMITTEE = ["committee.name=simulated"]


def run(*command: object, quiet: bool = True) -> str:
    """Run a command; where it fails, show what it printed and stop."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> Path:
    """Return the wheel of this checkout."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("fedrfq-*.whl")
    return wheel


def record(folder: Path) -> tuple[Path, Path]:
    """Train the smallest run with a committee and found a federation, with this checkout."""
    program = [sys.executable, "-m", "fedrfq.cli"]
    sets = [word for setting in SMALLEST + COMMITTEE for word in ("--set", setting)]
    run(*program, "run", *sets, "--out", folder / "runs")
    (path,) = (folder / "runs").glob("*/*")
    run(*program, "committee", "init", folder / "fed", "--servers", 1, "--clients", 1)
    return path, folder / "fed" / "server-0"


def installed(python: str, wheel: Path, extra: str, folder: Path) -> Path:
    """Return the `fedrfq` of a new virtual environment."""
    run(python, "-m", "venv", folder)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*pip, "-c", ROOT / "constraints.txt", f"{wheel}{extra}")
    return folder / "bin" / "fedrfq"


def check_base(program: Path, recorded: Path, server: Path) -> None:
    """Check that the base package knows its version, verifies a run, and runs a server."""
    assert run(program, "--version").strip().endswith("0.2.0")
    assert "is verified" in run(program, "verify", recorded, "--recompute")
    process = subprocess.Popen([program, "server", server], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (server / "status.json").exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        run(program, "committee", "status", server)
    finally:
        process.terminate()
        process.wait(30)
    missing = subprocess.run([program, "run"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2, missing
    assert "fedrfq[train]" in missing.stderr, missing.stderr


def check_training(program: Path, folder: Path) -> None:
    """Check that the smallest run is trained to its end."""
    sets = [word for setting in SMALLEST for word in ("--set", setting)]
    run(program, "run", *sets, "--out", folder / "runs")
    assert list((folder / "runs").glob("*/*/result.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="an interpreter to try; all by default")
    parser.add_argument("--train", default=sys.executable, help="the one with a PyTorch at hand")
    options = parser.parse_args()
    names = options.python or [f"python{version}" for version in VERSIONS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        recorded, server = record(folder)
        for number, python in enumerate(names):
            if shutil.which(python) is None or subprocess.run([python, "-V"]).returncode:
                print(f"{python}: not here")
                continue
            program = installed(python, wheel, "", folder / f"env-{number}")
            copy = shutil.copytree(server, folder / f"server-{number}")
            check_base(program, recorded, copy)
            print(f"{python}: the base package verifies a run and runs a server")
        program = installed(options.train, wheel, "[train]", folder / "env-train")
        check_training(program, folder)
        print(f"{options.train}: the wheel trains the smallest run")


if __name__ == "__main__":
    main()
