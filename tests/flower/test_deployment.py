"""The app on Flower's deployment engine, with TLS and authenticated nodes; one node is killed.

Most of the time goes into processes: each message to a node starts one that imports PyTorch. So
there are as few nodes and rounds as the assertions need.
"""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest

from support.command import fedrfq
from support.paths import EXAMPLES

pytest.importorskip("flwr", exc_type=ImportError)
if not Path("/proc/self/environ").exists():
    pytest.skip("processes are found by their environment in /proc", allow_module_level=True)

from support.deployment import Deployment, deployed

APP = EXAMPLES / "flower"
NODES = 2
CLIENTS = 2 * NODES
# One round with all nodes, one that waits for the dead one, and one that does not ask it any more.
ROUNDS = 3
EXPERIMENT = f"""
name = "deployed"
rounds = {ROUNDS}
clients = {CLIENTS}
[model]
name = "mlp"
[partition]
shots = 5
test_shots = 5
[committee]
name = "simulated"
"""
# The deadline is waited for in full once, when the node is dead. But it must not be so short that a
# live node on a loaded machine misses it: an answer takes 3 to 6 s on an idle one, where a node is
# registered in 1 s. So the deadline follows the time that registering takes.
MIN_DEADLINE_S = 15.0
DEADLINE_PER_REGISTERING = 12
LIMIT_S = 600.0


def start_run(deployment: Deployment, folder: Path) -> int:
    """Start a run of the app, with two clients on each node, and return its id."""
    (folder / "experiment.toml").write_text(EXPERIMENT)
    deployment.superlink()
    deadline_s = MIN_DEADLINE_S
    for i in range(NODES):
        began = time.monotonic()
        deployment.register(f"node-{i}")
        elapsed_s = time.monotonic() - began
        deadline_s = max(deadline_s, DEADLINE_PER_REGISTERING * elapsed_s)
        deployment.supernode(
            f"node-{i}",
            f"partition-id={i} num-partitions={NODES} state='{folder}/state-{i}' device='cpu'",
        )
    experiment = folder / "experiment.toml"
    return deployment.run(
        APP, f"experiment='{experiment}' out='{folder}/runs' deadline-s={deadline_s:.0f}"
    )


def recorded(folder: Path) -> int:
    """Return how many rounds are recorded."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("runs/*/*/rounds.jsonl"))


def test_a_node_that_is_killed_is_left_out(tmp_path: Path) -> None:
    with deployed(tmp_path / "deployment") as deployment:
        run = start_run(deployment, tmp_path)
        decided = "runs/*/*/decided.safetensors"
        deployment.until(lambda: any(tmp_path.glob(decided)), "no round was decided", LIMIT_S)
        deployment.kill(f"node-{NODES - 1}")
        result = "runs/*/*/result.json"
        deployment.until(lambda: any(tmp_path.glob(result)), "the run did not end", LIMIT_S)
        deployment.until(
            lambda: deployment.status(run) == "finished:completed", "the run has failed"
        )
    assert not deployment.processes()
    (result_path,) = tmp_path.glob(result)
    assert json.loads(result_path.read_text())["rounds"] == recorded(tmp_path) == ROUNDS
    rows = list(csv.DictReader((result_path.parent / "clients.csv").read_text().splitlines()))
    trained = {(int(row["round"]), int(row["client"])) for row in rows if row["trained"] == "1"}
    killed = {CLIENTS - 2, CLIENTS - 1}
    assert {client for round_, client in trained if round_ == 1} == set(range(CLIENTS))
    last = {client for round_, client in trained if round_ == ROUNDS}
    assert last
    assert not last & killed
    verified = fedrfq("verify", result_path.parent, "--recompute").stdout
    assert f"{ROUNDS} of {ROUNDS}" in verified
