"""Run a federation in which some parties have another revision of the program.

    python bench/mixed_versions.py next 08c0c06 cae85a8 --out results/mixed-versions.json

For each revision there are two federations of four servers and three clients. `upgrade`: it was
founded by the other program, and one server and one client have today's. `left behind`: it was
founded by today's program, and one server and one client have the other one. Each is to certify
three rounds of all clients; then today's `verify --recompute` reads the servers' logs. The other
program is taken from this repository's history; where that is not there, nothing is run. `next` is
today's program as a release that has the next version of the decisions.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from fedrfq.federation import decisions
from fedrfq.node.ops.child_processes import Child, stop
from fedrfq.node.ops.local_cluster import free_ports

ROOT = Path(__file__).parent.parent
TODAY = ROOT / "src"
SERVERS = 4
CLIENTS = 3
ROUNDS = 3
PATIENCE_S = 240.0
NEXT = "next"
SETTINGS = ["rounds=3", "model.name=mlp", "partition.shots=6", "partition.test_shots=4"]
# The parties that have the other program.
FEW = ("server-0", "client-0")


def unpacked(revision: str, folder: Path) -> Path | None:
    """Write the program of a revision to a folder; return it, or None if there is none."""
    if revision == NEXT:
        return following(folder / "src")
    command = ["git", "-C", str(ROOT), "archive", revision, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def following(source: Path) -> Path:
    """Write today's program to a folder, with the next version of the decisions; return it."""
    shutil.copytree(TODAY, source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "fedrfq" / "federation" / "decisions.py"
    text = path.read_text(encoding="utf-8")
    ours = f"VERSION = {decisions.VERSION}\n"
    assert ours in text
    path.write_text(text.replace(ours, f"VERSION = {decisions.VERSION + 1}\n"), encoding="utf-8")
    return source


def environment(source: Path) -> dict[str, str]:
    """Return the environment in which this source is the program that is run."""
    return {**os.environ, "PYTHONPATH": str(source)}


def command(*arguments: object) -> list[str]:
    """Return a command of whichever program is the environment's."""
    return [sys.executable, "-P", "-m", "fedrfq.cli", *map(str, arguments)]


def run(source: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of a program to its end."""
    return subprocess.run(
        command(*arguments), env=environment(source), capture_output=True, text=True, check=False
    )


def found(source: Path, folder: Path, detector: str) -> str:
    """Found a federation with this program; return its error, or nothing."""
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    ports = free_ports(1)[0]
    sizes = ["--servers", SERVERS, "--clients", CLIENTS, "--port", ports, "--minimum", CLIENTS]
    # A round needs all clients, so that it shows that each of them takes part.
    chosen = ["--set", f"detector.name={detector}"]
    done = run(source, "committee", "init", folder, *sizes, "--deadline", 600, *sets, *chosen)
    return done.stderr[-300:]


def scenario(founder: Path, few: Path, folder: Path, detector: str) -> dict[str, Any]:
    """Run a federation of which a few parties have another program."""
    error = found(founder, folder, detector)
    if error:
        return {"error": error}
    children = _children(founder, few, folder)
    try:
        for child in children.values():
            child.start()
        rounds = _until_done(folder, children)
    finally:
        stop([*children.values()])
    ended = {name: _last_error(child, folder) for name, child in children.items()}
    servers = [folder / f"server-{number}" for number in range(SERVERS)]
    logs = [server for server in servers if (server / "audit.log").exists()]
    verified = run(TODAY, "verify", *logs, "--recompute")
    return {
        "rounds": rounds,
        "errors": {name: text for name, text in ended.items() if text},
        "verify": [
            line.replace(f"{folder}/", "")
            for text in (verified.stdout, verified.stderr)
            for line in _last_line(text)
        ],
        "verify exit code": verified.returncode,
    }


def _children(most: Path, few: Path, folder: Path) -> dict[str, Child]:
    found = {}
    names = [f"server-{k}" for k in range(SERVERS)] + [f"client-{k}" for k in range(CLIENTS)]
    for name in names:
        role, _, _ = name.partition("-")
        more = ["--data", "mnist5k"] if role == "client" else []
        source = few if name in FEW else most
        started = command(role, folder / name, *more)
        found[name] = Child(name, started, folder / f"{name}.log", environment(source))
    return found


def _until_done(folder: Path, children: dict[str, Child]) -> dict[str, int]:
    """Wait until all clients have had their rounds, or too many have ended before that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rounds = {name: _rounds(folder / name) for name in children if "client" in name}
        # A round needs all but one of the servers.
        ended = sum(bool(child.code) for child in children.values()) > 1
        if min(rounds.values()) == ROUNDS or ended or time.monotonic() > deadline:
            return rounds
        time.sleep(0.5)


def _rounds(client: Path) -> int:
    path = client / "rounds.jsonl"
    if not path.exists():
        return 0
    return path.read_bytes().count(b"\n")


def _last_line(text: str) -> list[str]:
    """Return the last line of what was printed; none if that is how far it got."""
    return [line for line in text.splitlines()[-1:] if not line.startswith("verifying")]


def _last_error(child: Child, folder: Path) -> str:
    """Return what a process said last, if it ended badly or complained."""
    lines = child.output.read_text(encoding="utf-8", errors="replace").splitlines()
    # A negative code is that of the signal by which this program stopped it.
    if (child.code or 0) > 0:
        return " ".join(lines[-2:]).replace(f"{folder}/", "")[-400:]
    complaints = [line for line in lines if " warning " in line or " error " in line]
    # That another party is not there is said of that party.
    complaints = [line for line in complaints if "cannot connect" not in line]
    return " ".join(complaints[-1:])[-400:]


def tried(revision: str, detector: str) -> dict[str, Any]:
    """Try both federations with a revision."""
    with tempfile.TemporaryDirectory(prefix="fedrfq-mixed-") as name:
        folder = Path(name)
        older = unpacked(revision, folder / "older")
        if older is None:
            return {"skipped": "this revision is not in the history here"}
        return {
            "upgrade": scenario(older, TODAY, folder / "upgrade", detector),
            "left behind": scenario(TODAY, older, folder / "left-behind", detector),
        }


def main() -> None:
    """Try the revisions, and print and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revisions", nargs="+")
    parser.add_argument("--detector", default="adaptive")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    today = subprocess.run(described, capture_output=True, text=True, check=False).stdout.strip()
    line = f"python bench/mixed_versions.py {' '.join(options.revisions)}"
    record: dict[str, Any] = {"command": line, "revision": today, "rounds": ROUNDS, "older": {}}
    for revision in options.revisions:
        record["older"][revision] = tried(revision, options.detector)
        print(revision, json.dumps(record["older"][revision], indent=1), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
