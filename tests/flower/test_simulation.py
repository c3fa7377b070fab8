"""The app on Flower's simulation engine, started as its users start it: with `flwr run`.

A run takes a second; to start Ray and its workers takes ten. So all runs share one Ray cluster.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrfq.audit import Audit
from fedrfq.experiment import from_table
from fedrfq.files import toml
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session, pick_device
from flower_simulation import APP, Simulation, simulation
from support.command import fedrfq
from support.deployment import guarded
from support.flower_ray import ray_cluster
from support.flowers import SMALL, written

FORGER = '''
"""A server app that forges the result of the second round, once."""
from dataclasses import replace
from fedrfq.flower import node_registry, serverapp

NodeRegistry = node_registry.NodeRegistry
ask = NodeRegistry.ask
forgeries_left = [1]

def forged(self, order, hello):
    if order.round == 2 and forgeries_left:
        forgeries_left.clear()
        order = replace(order, last=order.last[:-1] + bytes([order.last[-1] ^ 1]))
    return ask(self, order, hello)

NodeRegistry.ask = forged
app = serverapp.app
'''


# The cores of the Ray cluster. By default a node takes one, and two workers serve all nodes. Where
# a test does not need nodes to work at the same time, a node takes both: one worker starts sooner.
CORES = 2
# Seconds. On a loaded machine Ray's workers took more than 60 to start.
PATIENCE_S = 240


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """Start a SuperLink and a Ray cluster that all runs share."""
    with guarded() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        # Seconds between two looks for a run to start; 1 by default.
        patch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
        with ray_cluster(CORES) as address:
            patch.setenv("RAY_ADDRESS", address)
            with simulation(tmp_path_factory.mktemp("superlink")) as running:
                yield running


def direct(folder: Path, table: dict[str, Any]) -> RunDirectory:
    """Run the experiment without Flower."""
    session = Session.begin([from_table(table)], pick_device("cpu"), folder / "direct")
    for _ in session.advance():
        pass
    session.finish()
    return session.runs[0]


def only(out: Path) -> RunDirectory:
    """Return the only run below this folder."""
    (path,) = out.glob("*/*")
    return RunDirectory.open(path)


def certificates(run: RunDirectory) -> list[Any]:
    """Return the certified records of all rounds, each recomputed."""
    return [round_.certificate.record for round_ in Audit(run.path, recompute=True).rounds()]


def test_one_client_a_node_leaves_the_bytes_of_a_run_without_flower(
    engine: Simulation, tmp_path: Path
) -> None:
    out = tmp_path / "flower"
    settings = {"experiment": written(tmp_path, SMALL), "out": str(out), "patience-s": PATIENCE_S}
    output = engine.run(settings, nodes=4)
    run = only(out)
    other = direct(tmp_path, SMALL)
    for name in ("audit.log", "bodies.bin", "clients.csv", "prototypes.safetensors"):
        assert (run.path / name).read_bytes() == (other.path / name).read_bytes(), output
    assert engine.statuses()[0] == "finished:completed"
    for record in run.rounds():
        assert f"round {record.round}/3: accuracy {record.accuracy_mean:.2f}" in output
    assert "3 of 3, recomputed" in fedrfq("verify", run.path, "--recompute").stdout
    fedrfq("report", run.path)
    assert (run.path / "report.html").is_file()


def test_killed_in_mid_run_it_goes_on_and_loses_nothing_certified(
    engine: Simulation, tmp_path: Path
) -> None:
    """With two clients a node, accuracies differ from those of one stack, but only by rounding."""
    table = toml.merge(SMALL, {"rounds": 12, "train": {"alone": False}})
    out = tmp_path / "flower"
    settings = {"experiment": written(tmp_path, table), "out": str(out)}
    with engine.running(settings, nodes=2) as process:
        _wait_for_rounds(out, 3, process)
        engine.kill("flwr-simulation")
    run = only(out)
    certified = (run.path / "audit.log").read_bytes()
    output = engine.run({"resume": str(run.path), "patience-s": PATIENCE_S}, nodes=2, cores=CORES)
    assert (run.path / "audit.log").read_bytes().startswith(certified)
    assert len(certificates(run)) == 12, output
    pairs = zip(run.rounds(), direct(tmp_path, table).rounds(), strict=True)
    assert max(abs(one.accuracy_mean - other.accuracy_mean) for one, other in pairs) <= 0.2


def test_a_forged_result_is_refused_by_every_client_and_the_true_one_taken(
    engine: Simulation, tmp_path: Path
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "forger.py").write_text(FORGER)
    text = (APP / "pyproject.toml").read_text(encoding="utf-8")
    (app / "pyproject.toml").write_text(text.replace("fedrfq.flower.serverapp:app", "forger:app"))
    out = tmp_path / "flower"
    settings = {"experiment": written(tmp_path, SMALL), "out": str(out)}
    output = engine.run(settings, nodes=2, app=app, cores=CORES)
    assert (
        output.count("the result of round 2 is refused, since this federation did not certify it")
        >= 2
    ), output
    found = certificates(only(out))
    expected = certificates(direct(tmp_path, SMALL))
    # The last round has those clients that were back in time.
    assert len(found) == 3, output
    assert found[:2] == expected[:2]


@pytest.mark.usefixtures("engine")
def test_the_command_of_the_guide_ends_with_the_success_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a SuperLink of its own, so paths are relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, SMALL)
    settings = f"experiment='experiment.toml' patience-s={PATIENCE_S}"
    done = fedrfq("flower", "run", APP, "--nodes", 1, "--run-config", settings)
    assert "round 3/3: accuracy" in done.stdout
    assert len(only(tmp_path / "runs").rounds()) == 3


@pytest.mark.usefixtures("engine")
def test_the_command_of_the_guide_ends_with_the_failure_of_the_run() -> None:
    settings = "experiment='nowhere.toml'"
    done = fedrfq("flower", "run", APP, "--nodes", 1, "--run-config", settings, expect=1)
    assert "there is no experiment file nowhere.toml" in done.stdout
    assert "error: the run ended as finished:failed" in done.stderr


def _wait_for_rounds(
    out: Path, rounds: int, process: subprocess.Popen[str], limit_s: float = 300.0
) -> None:
    """Wait until the run below `out` has recorded so many rounds."""
    end = time.monotonic() + limit_s
    while not any(path.read_text().count("\n") >= rounds for path in out.glob("*/*/rounds.jsonl")):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
