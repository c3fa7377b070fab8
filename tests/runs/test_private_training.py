"""Runs whose clients train by DP-SGD: what they cost, what is refused, and what is written down."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting import pld

from fedrfq import experiment
from fedrfq.errors import UserError
from fedrfq.privacy.accountant import NoisySteps, epsilon
from fedrfq.privacy.trained_rounds import TrainedRounds
from fedrfq.runs.session import Session
from support.command import CPU, fedrfq, only_run, sets

PRIVATE = [
    "clients=3",
    "rounds=2",
    "checkpoint=1",
    "partition.shots=4",
    "partition.test_shots=2",
    "method.name=fedavg",
    "train.batch_size=4",
    "train.dp_noise=1.5",
    "train.dp_rate=0.25",
]


def by_hand(steps: int, *uploads: float) -> float:
    accountant = pld.PLDAccountant()
    gaussian = dp_accounting.GaussianDpEvent
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.25, gaussian(1.5)), steps)
    for noise in uploads:
        accountant.compose(gaussian(noise))
    return float(accountant.get_epsilon(1e-5))


def test_epsilon_is_that_of_dp_accounting_called_by_hand() -> None:
    assert epsilon([], 1e-5, NoisySteps(8, 0.25, 1.5)) == by_hand(8)
    together = epsilon([2.0, 3.0], 1e-5, NoisySteps(8, 0.25, 1.5))
    assert together == pytest.approx(by_hand(8, 2.0, 3.0), abs=1e-4)
    assert together > by_hand(8)
    # With every sample in every step it is the Gaussian mechanism.
    plain = epsilon([1.5] * 8, 1e-5)
    assert epsilon([], 1e-5, NoisySteps(8, 1.0, 1.5)) == pytest.approx(plain, rel=0.01)


def test_every_client_has_an_epsilon_over_all_steps(tmp_path: Path) -> None:
    planned = fedrfq("run", *sets(PRIVATE), "--dry-run").stdout
    assert f"ε = {by_hand(8):.4g} at δ = 1e-05 after 0 uploads and 8 steps of DP-SGD" in planned
    fedrfq("run", *sets(PRIVATE), "--out", tmp_path)
    run = only_run(tmp_path)
    claims = json.loads((run.path / "privacy.json").read_text())["clients"]
    assert {(row["epsilon"], row["steps"], row["uploads"]) for row in claims} == {
        (by_hand(8), 8, 0)
    }
    assert "which no seed can repeat" in claims[0]["mechanism"]
    shown = fedrfq("show", run.path).stdout
    assert "steps of training: 8" in " ".join(shown.split())
    # The file that the run was started with, and what was recorded of it, are the same experiment.
    assert run.experiment().train.dp_noise == 1.5


def test_a_round_that_is_trained_again_is_paid_again(tmp_path: Path) -> None:
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    path = session.runs[0].path
    next(session.advance())
    session.close()
    for checkpoint in (path / "checkpoints").iterdir():
        checkpoint.unlink()
    fedrfq("resume", path)
    claims = json.loads((path / "privacy.json").read_text())["clients"]
    assert {(row["epsilon"], row["steps"]) for row in claims} == {(by_hand(12), 12)}


def test_a_round_is_written_down_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    monkeypatch.setattr(session.loop, "_train", None)
    with pytest.raises(TypeError):
        next(session.advance())
    session.close()
    begun = TrainedRounds(session.runs[0].path / "privacy")
    assert [begun.of(client) for client in range(3)] == [1, 1, 1]


def test_a_list_of_rounds_that_was_changed_is_refused(tmp_path: Path) -> None:
    for damage in ("{}", "[1]", '[["a"]]', "["):
        (tmp_path / "training.json").write_text(damage)
        with pytest.raises(UserError, match="restore the file"):
            TrainedRounds(tmp_path)


def test_without_the_accountant_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="dp-accounting, which is not installed"):
        Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    assert not list(tmp_path.iterdir())


def test_clients_count_alike_because_their_numbers_of_samples_are_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fedrfq.engine import averaging

    seen = []
    real = averaging.exchange

    def exchange(*given: Any, **named: Any) -> Any:
        seen.append(given[4].tolist())
        return real(*given, **named)

    monkeypatch.setattr(averaging, "exchange", exchange)
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    next(session.advance())
    session.close()
    assert seen == [[[1, 1, 1]]]


def test_prototypes_are_not_covered_and_it_is_said(tmp_path: Path) -> None:
    made = experiment.load(sets=[*PRIVATE, "method.name=fedproto"])
    assert "uploads means of its samples' features without noise" in made.uncovered()
    assert not experiment.load(sets=PRIVATE).uncovered()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("method.name=self", "trains toward the means of the client's own samples"),
        ("privacy.budget=4.0", "does not stop training"),
        ("train.dp_rate=0.0", "train.dp_rate must be"),
        ("train.dp_clip=0.0", "train.dp_clip must be"),
        ("train.dp_noise=-1.0", "train.dp_noise must be"),
    ],
)
def test_what_is_not_covered_is_refused(change: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        experiment.load(sets=[*PRIVATE, change])


def test_protecting_whole_clients_is_refused() -> None:
    units = ["privacy.unit=client", "privacy.samples=5"]
    with pytest.raises(UserError, match="protects single samples"):
        experiment.load(sets=[*PRIVATE, *units])


def test_samples_that_meet_in_a_model_are_refused(tmp_path: Path) -> None:
    made = experiment.load(sets=[*PRIVATE, "model.name=resnet18"])
    with pytest.raises(UserError, match="BatchNorm"):
        Session.begin([made], CPU, tmp_path)


def test_experiments_without_it_keep_their_hashes() -> None:
    assert "dp_noise" not in experiment.load(sets=[]).table()["train"]
    private = experiment.load(sets=PRIVATE)
    assert experiment.from_table(private.table()) == private
