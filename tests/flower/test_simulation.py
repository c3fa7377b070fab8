"""The app in Flower's simulation engine, as its users start it: `flwr run`."""

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
from support.flowers import SMALL, written

FORGER = '''
"""A server app that makes up the second result, once."""
from dataclasses import replace
from fedrfq.flower import roll, serverapp

ask, left = roll.Roll.ask, [1]

def forged(self, order, hello):
    if order.round == 2 and left:
        left.clear()
        order = replace(order, last=order.last[:-1] + bytes([order.last[-1] ^ 1]))
    return ask(self, order, hello)

roll.Roll.ask = forged
app = serverapp.app
'''


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    with simulation(tmp_path_factory.mktemp("superlink")) as found:
        yield found


def direct(folder: Path, table: dict[str, Any]) -> RunDirectory:
    session = Session.begin([from_table(table)], pick_device("cpu"), folder / "direct")
    for _ in session.advance():
        pass
    session.finish()
    return session.runs[0]


def only(out: Path) -> RunDirectory:
    (found,) = out.glob("*/*")
    return RunDirectory.open(found)


def test_one_client_a_node_leaves_the_bytes_of_a_run_without_flower(
    engine: Simulation, tmp_path: Path
) -> None:
    settings = {
        "experiment": written(tmp_path, SMALL),
        "out": str(tmp_path / "flower"),
        "patience-s": 60,
    }
    said = engine.run(settings, nodes=4)
    found = only(tmp_path / "flower")
    other = direct(tmp_path, SMALL)
    for name in ("audit.log", "bodies.bin", "clients.csv", "prototypes.safetensors"):
        assert (found.path / name).read_bytes() == (other.path / name).read_bytes(), said
    assert engine.statuses()[0] == "finished:completed"
    for record in found.rounds():
        assert f"round {record.round}/3: accuracy {record.accuracy_mean:.2f}" in said
    assert "3 of 3, recomputed" in fedrfq("verify", found.path, "--recompute").stdout
    fedrfq("report", found.path)
    assert (found.path / "report.html").is_file()


def test_killed_in_mid_run_it_goes_on_and_loses_nothing_certified(
    engine: Simulation, tmp_path: Path
) -> None:
    """In two shards, whose accuracies differ from those of one stack by rounding alone."""
    table = toml.merge(SMALL, {"rounds": 12, "train": {"alone": False}})
    out = tmp_path / "flower"
    settings = {"experiment": written(tmp_path, table), "out": str(tmp_path / "flower")}
    with engine.running(settings, nodes=2) as process:
        _until(
            lambda: [
                path for path in out.glob("*/*/rounds.jsonl") if path.read_text().count("\n") >= 3
            ],
            process,
        )
        engine.kill("flwr-simulation")
    found = only(out)
    certified = (found.path / "audit.log").read_bytes()
    said = engine.run({"resume": str(found.path), "patience-s": 60}, nodes=2)
    assert (found.path / "audit.log").read_bytes().startswith(certified)
    assert len(list(Audit(found.path, recompute=True).rounds())) == 12, said
    pairs = zip(found.rounds(), direct(tmp_path, table).rounds(), strict=True)
    assert max(abs(one.accuracy_mean - other.accuracy_mean) for one, other in pairs) <= 0.2


def test_a_forged_result_is_refused_by_every_client_and_the_true_one_taken(
    engine: Simulation, tmp_path: Path
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "forger.py").write_text(FORGER)
    text = (APP / "pyproject.toml").read_text(encoding="utf-8")
    (app / "pyproject.toml").write_text(text.replace("fedrfq.flower.serverapp:app", "forger:app"))
    said = engine.run(
        {"experiment": written(tmp_path, SMALL), "out": str(tmp_path / "flower")}, nodes=2, app=app
    )
    assert (
        said.count("the result of round 2 is refused, this federation did not certify it") >= 2
    ), said
    found, other = (
        list(Audit(run.path, True).rounds())
        for run in (only(tmp_path / "flower"), direct(tmp_path, SMALL))
    )
    assert len(found) == 3, said  # the last with those that were back in time
    assert [one.certificate.record for one in found[:2]] == [
        one.certificate.record for one in other[:2]
    ]


def test_what_a_user_can_mend_ends_the_run_as_failed_with_a_line(engine: Simulation) -> None:
    said = engine.run({"experiment": "nowhere.toml"}, nodes=2)
    assert "there is no experiment file nowhere.toml" in said
    assert engine.statuses()[0] == "finished:failed"


def _until(done: Any, process: subprocess.Popen[str], limit_s: float = 120.0) -> None:
    until = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
