"""Runs whose clients train by DP-SGD: what they cost, what is refused, and what is written down."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from fedrfq import experiment
from fedrfq.data import Dataset
from fedrfq.engine.engine import Engine
from fedrfq.errors import UserError
from fedrfq.experiment import from_table
from fedrfq.learning.public import noisy_exchange
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.privacy.accountant import NoisySteps, epsilon
from fedrfq.privacy.claim import claim
from fedrfq.privacy.mechanism import NoisyStatistics, noisy_statistics
from fedrfq.privacy.settings import Privacy
from fedrfq.privacy.trained_rounds import TrainedRounds
from fedrfq.runs.privacy_record import summary
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


def test_a_result_has_the_largest_epsilon_of_any_client(tmp_path: Path) -> None:
    """Clients that trained in more rounds have spent more; none of them has uploaded with noise."""
    some = [*PRIVATE, "rounds=3", "participation=0.34", "seed=1"]
    fedrfq("run", *sets(some), "--out", tmp_path)
    run = only_run(tmp_path)
    claims = json.loads((run.path / "privacy.json").read_text())["clients"]
    largest = max(row["epsilon"] for row in claims)
    assert claims[0]["epsilon"] < largest
    assert json.loads((run.path / "result.json").read_text())["privacy"]["epsilon"] == largest


def test_a_client_without_an_epsilon_is_the_one_that_a_result_shows() -> None:
    made = claim(Privacy(noise=2.0), [])
    without = claim(Privacy(noise=2.0), [], "its prototypes have no noise")
    assert summary([made, without])["privacy"]["epsilon"] is None
    assert summary([without, made])["privacy"]["epsilon"] is None


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


def test_statistics_without_noise_are_not_covered_and_it_is_said() -> None:
    """The models have noise, and what is uploaded on the public map has none."""
    public = [*PRIVATE, "public.name=random"]
    assert "set privacy.noise" in experiment.load(sets=public).uncovered()
    assert "no ε" in fedrfq("run", *sets(public), "--dry-run").stdout
    assert not experiment.load(sets=[*public, "privacy.noise=2.0"]).uncovered()


def test_a_loss_over_classes_is_refused() -> None:
    """A sample by itself would silently make it the loss over samples."""
    changed = [*PRIVATE, "method.name=fedrfq", "method.reduction=classes"]
    with pytest.raises(UserError, match=r"set method\.reduction = 'samples'"):
        experiment.load(sets=changed)


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


# Round 1 exchanges statistics on a public map, and round 2 prototypes.
PROTOTYPES = [
    *(key for key in PRIVATE if not key.startswith("method.")),
    "method.name=fedproto",
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "detector.name=adaptive",
    "committee.name=simulated",
    "privacy.noise=2.0",
    "privacy.prototype_norm=4.0",
]


@pytest.fixture(scope="module")
def covered(_data_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("covered")
    fedrfq("run", *sets(PROTOTYPES), "--out", out)
    return only_run(out).path


def test_noisy_prototypes_of_models_trained_with_noise_have_an_epsilon(covered: Path) -> None:
    """It is that of all steps and of both uploads together."""
    spent = by_hand(8, 2.0, 2.0)
    claims = json.loads((covered / "privacy.json").read_text())["clients"]
    for row in claims:
        assert (row["steps"], row["uploads"], row["why"]) == (8, 2, "")
        assert row["epsilon"] == pytest.approx(spent, abs=1e-4)
    planned = fedrfq("run", *sets(PROTOTYPES), "--dry-run").stdout
    assert f"ε = {spent:.4g} at δ = 1e-05 after 2 uploads and 8 steps" in planned


def test_prototypes_are_drawn_once_and_verified_as_they_lie_on_the_disk(covered: Path) -> None:
    names = {file.name for file in (covered / "privacy").glob("*.upload")}
    assert names == {f"run-{number}-{client}.upload" for number in (1, 2) for client in range(3)}
    fedrfq("verify", covered, "--recompute")


def test_prototypes_have_the_noise_that_was_agreed_on(mnist: Dataset) -> None:
    narrow = ["privacy.noise=0.3", "privacy.prototype_norm=16", "privacy.count_share=0.9"]
    loop = RoundLoop([experiment.load(sets=[*PROTOTYPES, *narrow])], mnist, CPU)
    (sent,) = loop._upload(2, loop.start().params, [[0, 1, 2]])
    # What one sample changes is 16 / √(1 − 0.9).
    noise = 0.3 * 16 / 0.1**0.5
    assert sent.noise is not None
    assert sent.noise.sigma / 2**14 == pytest.approx(noise, rel=1e-3)
    held_KJ = loop.held_KJ.numpy()
    assert (sent.held_KJ == held_KJ).all()
    sums = sent.values_KJV[held_KJ] * sent.counts_KJ[held_KJ][:, None] / 2**14
    # Beside it the sums of four samples' features are small.
    assert sums.std() == pytest.approx(noise, rel=0.25)


def test_each_client_draws_of_its_own_features_and_none_leave_without_noise(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs in one stack, and of clients with two kinds of models."""
    cohorts = [{"clients": 1, "channels": 4}, {"clients": 2, "channels": 6}]
    plain = experiment.load(sets=PROTOTYPES)
    runs = [from_table({**plain.table(), "cohorts": cohorts, "seed": seed}) for seed in (0, 1)]
    with pytest.raises(UserError, match="cannot be stacked"):
        RoundLoop(
            [plain, experiment.load(sets=[*PROTOTYPES, "privacy.prototype_norm=0"])], mnist, CPU
        )
    loop = RoundLoop(runs, mnist, CPU)
    state = loop.start()
    means = [
        engine.class_means(params, 10)[0]
        for engine, params in zip(loop.engines, state.params, strict=True)
    ]
    seen = []

    def drawn(z_NV: Any, y_N: Any, *more: Any, **named: Any) -> NoisyStatistics:
        seen.append((z_NV, y_N))
        return noisy_statistics(z_NV, y_N, *more, **named)

    monkeypatch.setattr(noisy_exchange, "noisy_statistics", drawn)
    monkeypatch.setattr(Engine, "class_means", None)
    loop._upload(2, state.params, [[0, 1, 2], [0, 1, 2]])
    # Run after run: first the client of one kind, then the two of the other.
    expected = [means[0][0], *means[1][:2], means[0][1], *means[1][2:]]
    indices = [index for partition in loop.partitions for index in partition.train]
    for (z_NV, y_N), means_JV, index in zip(seen, expected, indices, strict=True):
        assert sorted(y_N) == sorted(mnist.train_y[index])
        for label in np.unique(y_N):
            assert z_NV[y_N == label].mean(0) == pytest.approx(means_JV[label].numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["privacy.noise=0"], "set privacy.noise, or remove it"),
        (["train.dp_noise=0"], "set train.dp_noise"),
        (["method.name=fedavg"], "'fedavg' uploads no prototypes"),
        (["method.name=local"], "'local' uploads no prototypes"),
        (["privacy.prototype_norm=-1"], "privacy.prototype_norm must be 0 to"),
        (["privacy.prototype_norm=0.01"], "raise privacy.prototype_norm"),
    ],
)
def test_noise_in_prototypes_is_refused_without_the_rest(changes: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        experiment.load(sets=[*PROTOTYPES, *changes])


def test_prototypes_without_noise_have_no_epsilon() -> None:
    planned = fedrfq("run", *sets([*PROTOTYPES, "privacy.prototype_norm=0"]), "--dry-run").stdout
    assert "train.dp_noise covers the model alone: set privacy.prototype_norm" in planned
