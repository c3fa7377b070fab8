"""What holds for every method, including those added later with a file and a line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.api.contracts.example_runs import MLP
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.methods import METHODS
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.detectors import DETECTORS, Detector, State, Verdict
from fedrfq.runs.session import Session
from support.command import assert_same_run, records
from support.remembering import Halving
from support.small import CPU, run, timeless, tiny

PROTOTYPE_FIGURES = (
    "prototype_accuracy_mean",
    "prototype_accuracy_std",
    "prototype_accuracy_own_mean",
    "prototype_failure",
    "honest_prototype_accuracy_mean",
)
every_method = pytest.mark.parametrize("name", METHODS)


@every_method
def test_figures_of_prototypes_are_there_if_and_only_if_clients_predict_by_them(
    mnist: Dataset, name: str
) -> None:
    state, (_, (second,)) = run([tiny(method={"name": name}, model=MLP)], mnist, 2)
    exchanges = METHODS[name].exchanges
    predicts = METHODS[name].predicts
    record = timeless(second)
    assert predicts or not exchanges
    assert [key for key in PROTOTYPE_FIGURES if (record[key] is not None) != predicts] == []
    columns = ("prototype_accuracy", "prototype_accuracy_own")
    assert all((row[key] is not None) == predicts for row in record["clients"] for key in columns)
    # Clients may train toward prototypes that are nobody's but their own.
    pulled = predicts or METHODS[name].own_means
    assert all(
        (row["loss_prototype"] is not None) == pulled for row in (record, *record["clients"])
    )
    assert all((row["score"] is not None) == exchanges for row in record["clients"])
    assert all((row["verdict"] == "kept") == exchanges for row in record["clients"])
    travels = exchanges or METHODS[name]().centres > 0
    assert all(
        (record[f"{what}_{way}"] > 0) == travels
        for what in ("parameters", "bytes")
        for way in ("up", "down")
    )
    assert state.globals_[0].present_J.any() == exchanges
    assert bool(state.server[0]) == METHODS[name].trains_server
    assert bool(state.centres) == (METHODS[name]().centres > 0)
    assert 0 < record["loss_classification"] <= record["loss"]


@every_method
def test_clients_of_different_models_exchange_prototypes_or_nothing(
    mnist: Dataset, name: str
) -> None:
    cohorts = [{"clients": 2, "channels": 18}, {"clients": 4}]
    if METHODS[name]().centres:
        with pytest.raises(
            UserError, match=f"'{name}' averages models, so all clients must hold the same model"
        ):
            tiny(method={"name": name}, cohorts=cohorts)
        return
    state, _ = run([tiny(method={"name": name}, cohorts=cohorts)], mnist, 1)
    assert len(state.params) == 2


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind().centres])
def test_cohorts_of_one_model_are_refused_where_models_are_averaged(name: str) -> None:
    """They would be two averages, not one."""
    with pytest.raises(UserError, match="remove the cohorts"):
        tiny(method={"name": name}, cohorts=[{"clients": 2}, {"clients": 4}])


def test_the_warmup_goes_by_the_rounds_number(mnist: Dataset) -> None:
    lean = {"name": "fedrfq-lean", "separation": 0.0, "warmup": 2}
    _, rounds = run([tiny(method=lean, model=MLP)], mnist, 4)
    found = [outcome.record for (outcome,) in rounds]
    for record, share in zip(found, (0, 0.5, 1, 1), strict=True):
        assert record.loss - record.loss_classification == pytest.approx(
            share * (record.loss_prototype or 0), rel=1e-3
        )


# Stopped and resumed


@dataclass(frozen=True)
class Rota(Detector):
    """Drops the client whose turn it is: who that is, is remembered, and nothing else says so."""

    exact = True
    first: int = 1

    def start(self, clients: int) -> State:
        return {"turn": np.array([self.first]), "seen": np.zeros(clients, np.int64)}

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        turn = int(state["turn"][0])
        rows = np.array(uploads.clients)
        seen = state["seen"].copy()
        seen[rows] += 1
        kept = rows != turn
        return {"turn": np.array([(turn + 1) % len(seen)]), "seen": seen}, Verdict.of_kept(
            uploads, kept, seen[rows]
        )


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DETECTORS, "rota", Rota)
    monkeypatch.setitem(DETECTORS, "halving", Halving)


def resumed(experiments: list[Experiment], folder: Path, dataset: Dataset) -> tuple[Path, Path]:
    """Return the last run's directories: never stopped, and resumed from a snapshot of round 2."""
    experiments = [replace(experiment, rounds=5, checkpoint=2) for experiment in experiments]
    whole = Session.begin(experiments, CPU, folder / "whole", dataset)
    list(whole.advance())
    stopped = Session.begin(experiments, CPU, folder / "stopped", dataset)
    rounds = stopped.advance()
    for _ in range(3):
        next(rounds)
    stopped.close()
    again = Session.resume(stopped.runs[-1].path, CPU)
    assert again.state.round == 2
    list(again.advance())
    return whole.runs[-1].path, again.runs[-1].path


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "fesem"}, "participation": 0.5},
        {"method": {"name": "fedavg"}},
        {"method": {"name": "fedtgp", "server_epochs": 3}, "participation": 0.5},
        {"method": {"name": "fedorgp"}, "detector": {"name": "median"}},
        {"method": {"name": "fedsa", "inertia": 0.9}},
        {"method": {"name": "self"}},
        {"detector": {"name": "rota"}},
        {"detector": {"name": "halving"}, "committee": {"name": "simulated"}},
        {
            "detector": {"name": "adaptive"},
            "attack": {"name": "sign-flip", "clients": 2, "start_round": 2},
        },
        {
            "attack": {"name": "noise", "clients": 2},
            "validation": 0.3,
            "method": {"name": "fedrfq-lean", "warmup": 4},
        },
    ],
    ids=str,
)
def test_resumed_runs_end_in_the_same_bytes(
    mnist: Dataset, tmp_path: Path, changes: dict[str, Any], rota: None
) -> None:
    """Of two stacked runs, each finds its own centres, detector state and server's parameters."""
    experiments = [tiny(seed=seed, model=MLP, **changes) for seed in (0, 1)]
    one, other = resumed(experiments, tmp_path, mnist)
    assert_same_run(one, other)
    if changes.get("detector") == {"name": "rota"}:
        assert [record["filtered"] for record in records(other)] == [[1], [2], [3], [4], [5]]


def test_stacked_detectors_remember_each_their_own(mnist: Dataset, rota: None) -> None:
    _, rounds = run(
        [tiny(model=MLP, detector={"name": "rota", "first": first}) for first in (0, 4)], mnist, 3
    )
    assert [[outcome.record.filtered for outcome in outcomes] for outcomes in rounds] == [
        [[0], [4]],
        [[1], [5]],
        [[2], [0]],
    ]
