"""The app in Flower's deployment engine, as processes with TLS and node authentication; one node is killed in mid-run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from support.command import fedrfq
from support.paths import EXAMPLES

pytest.importorskip("flwr", exc_type=ImportError)
if not Path("/proc/self/environ").exists():
    pytest.skip("processes are found by their environment in /proc", allow_module_level=True)

from support.deployment import Deployment, deployed

APP = EXAMPLES / "flower"
NODES = 4
ROUNDS = 4
EXPERIMENT = f"""
name = "deployed"
rounds = {ROUNDS}
clients = {2 * NODES}
[model]
name = "mlp"
[partition]
shots = 5
test_shots = 5
[committee]
name = "simulated"
"""
LIMIT_S = 240.0  # a message starts a process at every node, and machines are slow


def started(deployment: Deployment, folder: Path) -> int:
    """A run of the app on as many nodes as there are, with two clients each."""
    (folder / "experiment.toml").write_text(EXPERIMENT)
    deployment.superlink()
    for i in range(NODES):
        deployment.register(f"node-{i}")
        deployment.supernode(
            f"node-{i}",
            f"partition-id={i} num-partitions={NODES} state='{folder}/state-{i}' device='cpu'",
        )
    return deployment.run(
        APP, f"experiment='{folder}/experiment.toml' out='{folder}/runs' deadline-s=40"
    )


def recorded(folder: Path) -> int:
    """How many rounds."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("runs/*/*/rounds.jsonl"))


def test_a_node_that_is_killed_is_left_out(tmp_path: Path) -> None:
    with deployed(tmp_path / "deployment") as deployment:
        run = started(deployment, tmp_path)
        deployment.until(lambda: recorded(tmp_path) >= 1, "no round is recorded", LIMIT_S)
        deployment.kill(f"node-{NODES - 1}")
        deployment.until(
            lambda: any(tmp_path.glob("runs/*/*/result.json")), "the run does not end", LIMIT_S
        )
        deployment.until(
            lambda: deployment.status(run) == "finished:completed", "the run has failed"
        )
    assert not deployment.processes()
    (result,) = tmp_path.glob("runs/*/*/result.json")
    assert json.loads(result.read_text())["rounds"] == recorded(tmp_path) == ROUNDS
    rows = list(csv.DictReader((result.parent / "clients.csv").read_text().splitlines()))
    trained = {(int(row["round"]), int(row["client"])) for row in rows if row["trained"] == "1"}
    assert {client for round_, client in trained if round_ == 1} == set(range(2 * NODES))
    assert not {(ROUNDS, client) for client in (2 * NODES - 2, 2 * NODES - 1)} & trained
    assert {client for round_, client in trained if round_ == ROUNDS}
    assert f"{ROUNDS} of {ROUNDS}" in fedrfq("verify", result.parent, "--recompute").stdout
