"""What holds for every method, including those added later with a file and a line."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import RoundLoop, participants
from fedrfq.methods import METHODS
from fedrfq.models import MODELS
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.detectors import DETECTORS, Detector, State, Verdict
from fedrfq.runs.session import Session
from support.command import assert_same_run, records
from support.remembering import Halving
from support.small import CPU, rows_of, run, timeless, tiny

MLP = {"name": "mlp", "width": 20}
WEIGHTS = {
    "lam": 0.3,
    "mu": 0.4,
    "separation": 0.2,
    "temperature": 0.5,
    "warmup": 2,
    "aggregate": "median",
    "norm": 3.0,
    "learned": 0.2,
    "ramp": 2,
    "steps": 7,
    "push": 0.02,
    "contrast": 0.7,
    "calibration": 0.6,
    "margin": 2.0,
    "inertia": 0.9,
    "tau": 1.5,
    "gamma": 2.0,
    "server_epochs": 3,
    "server_batch": 5,
    "server_lr": 0.02,
}
PROTOTYPE_FIGURES = (
    "prototype_accuracy_mean",
    "prototype_accuracy_std",
    "prototype_accuracy_own_mean",
    "prototype_failure",
    "honest_prototype_accuracy_mean",
)
every_method = pytest.mark.parametrize("name", METHODS)


def reweighted(name: str) -> dict[str, Any]:
    """The method with other weights of its terms: all that its guide carries."""
    return {
        "name": name,
        **{f.name: WEIGHTS[f.name] for f in fields(METHODS[name]) if f.name in WEIGHTS},
    }


@every_method
def test_stacked_runs_are_each_as_alone(mnist: Dataset, name: str) -> None:
    """Other seeds, other weights: rounding aside, nobody knows of the others."""
    experiments = [
        tiny(seed=0, method={"name": name}, model=MLP, participation=0.7),
        tiny(seed=1, method=reweighted(name), model=MLP, participation=0.7),
    ]
    together, stacked = run(experiments, mnist, 2)
    for r, experiment in enumerate(experiments):
        alone, rows = run([experiment], mnist, 2)
        own = rows_of(together.params[0], slice(6 * r, 6 * r + 6))
        torch.testing.assert_close(own, alone.params[0], rtol=1e-3, atol=1e-4)
        precision = experiment.method.precision()
        off = np.abs(together.globals_[r].values_JV - alone.globals_[0].values_JV).max()
        assert off <= max(20, precision.step)  # thousandths, or one step of the grid
        for outcomes, (expected,) in zip(stacked, rows, strict=True):
            mine = timeless(outcomes[r])
            lone = timeless(expected)
            assert mine["loss"] == pytest.approx(lone["loss"], rel=1e-3)
            assert mine["accuracy_mean"] == pytest.approx(lone["accuracy_mean"], abs=1.5)
            for key in (
                "parameters_up",
                "parameters_down",
                "bytes_up",
                "bytes_down",
                "samples",
                "participants",
            ):
                assert mine[key] == lone[key]


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
def test_the_guide_keeps_its_shape(mnist: Dataset, name: str) -> None:
    """On CUDA a step is recorded once, and later rounds are copied into the same memory."""
    loop = RoundLoop([tiny(method={"name": name}, model=MLP)], mnist, CPU)
    state = loop.start()
    shapes = []
    for _ in range(3):
        guide = loop.guide(state, loop.cohorts[0], state.params[0])
        shapes.append([(key, t.shape, t.dtype) for key, t in guide.items()])
        assert all(len(t) == 6 for t in guide.values())
        state, _ = loop.advance(state)
    assert shapes[0] == shapes[1] == shapes[2]


@every_method
def test_who_is_away_trains_nothing_and_sends_nothing(mnist: Dataset, name: str) -> None:
    experiment = tiny(method={"name": name}, model=MLP, participation=0.5)
    loop = RoundLoop([experiment], mnist, CPU)
    state = loop.start()
    own = [
        key
        for key in state.params[0]
        if not experiment.method.shared(loop.engines[0].program.model.head(key))
    ]
    for number in (1, 2):
        who = participants(experiment, number)
        away = [k for k in range(6) if k not in who]
        after, (outcome,) = loop.advance(state)
        for key in own:
            assert torch.equal(after.params[0][key][away], state.params[0][key][away])
            assert all(
                not torch.equal(after.params[0][key][k], state.params[0][key][k]) for k in who
            )
        record = outcome.record
        rows = outcome.clients
        assert (record.participants, [k for k in range(6) if rows[k]["trained"]]) == (3, who)
        assert [k for k in range(6) if rows[k]["loss_classification"] is None] == away
        assert [k for k in range(6) if rows[k]["verdict"]] == (
            who if experiment.method.exchanges else []
        )
        epochs = experiment.method.epochs(1)
        assert record.samples == epochs * sum(rows[k]["samples"] for k in who)
        state = after


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


@pytest.mark.parametrize("name", MODELS)
def test_a_models_decision_layer_is_what_its_classes_decide(name: str) -> None:
    """Its parameters are those, and only those, that have a row for each class."""
    model = MODELS[name]()
    params = model.start((3, 32, 32), 11, torch.Generator().manual_seed(0))
    assert (
        [key for key in params if model.head(key)]
        == [key for key, p in params.items() if len(p) == 11]
        != []
    )
