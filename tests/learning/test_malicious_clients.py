"""Malicious clients in whole federations: who they are, when they begin, what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import Generator
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data
from fedrfq.data.partition import Ints, Partition
from fedrfq.engine import engine
from fedrfq.errors import UserError
from fedrfq.learning import round_loop
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import Diverged, RoundLoop, attackers, participants
from fedrfq.methods import METHODS
from fedrfq.prototypes.fixed_point import LIMIT, MAX_COUNT, Uploads
from fedrfq.robust.aggregation import combine
from fedrfq.robust.attacks import ATTACKS, Attack, Scene
from fedrfq.robust.detectors import DETECTORS
from fedrfq.runs.influence import Influence, influence
from fedrfq.runs.session import detection
from support.command import CPU, SMALL, clients, fedrfq, records, sets
from support.remembering import Halving
from support.small import run, tiny

MLP = {"name": "mlp", "width": 20}
REASONS = {
    "large": "the value 1048576 is outside the fixed-point range of ±1048575",
    "negative": "a class has -5 samples, outside 0 to 1048576",
    "many": "a class has 1048577 samples, outside 0 to 1048576",
}


@dataclass(frozen=True)
class Garbage(Attack):
    """Sends what no message can carry."""

    kind: str = "large"

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        counts = scene.uploads.counts_KJ.copy()
        values = scene.uploads.values_KJV.copy()
        theirs = np.flatnonzero(scene.malicious_K)
        if self.kind == "large":
            values[theirs, 0, 0] = LIMIT
        else:
            if self.kind == "negative":
                counts[theirs, 3] = -5
            else:
                counts[theirs, 3] = MAX_COUNT + 1
        return replace(scene.uploads, counts_KJ=counts, values_KJV=values)


@pytest.fixture(autouse=True)
def _garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "garbage", Garbage)


def garbage(**options: Any) -> dict[str, Any]:
    return {"name": "garbage", "clients": 2, **options}


# Who they are


def test_attackers_are_drawn_by_the_seed_alone() -> None:
    drawn = [attackers(tiny(seed=seed, attack=garbage())) for seed in range(300)]
    assert all(
        who == sorted(set(who)) and len(who) == 2 and set(who) <= set(range(6)) for who in drawn
    )
    assert len({tuple(who) for who in drawn}) == 15  # of 6 choose 2
    assert np.bincount(np.concatenate(drawn)).min() > 70  # 100 expected
    other = tiny(
        seed=3,
        attack={"name": "sign-flip", "clients": 2},
        participation=0.5,
        model=MLP,
        detector={"name": "median"},
    )
    assert attackers(other) == drawn[3]
    assert attackers(tiny()) == []
    assert attackers(tiny(attack=garbage(clients=6))) == list(range(6))


def test_more_attackers_are_the_fewer_and_some_others() -> None:
    two, three = (attackers(tiny(seed=5, attack=garbage(clients=n))) for n in (2, 3))
    assert set(two) < set(three)


# Uploads that are refused


@pytest.mark.parametrize("kind", REASONS)
def test_garbage_is_refused_with_a_reason_and_the_round_goes_on(
    mnist: Dataset, kind: str, sent: list[Uploads]
) -> None:
    experiment = tiny(attack=garbage(kind=kind), model=MLP)
    loop = RoundLoop([experiment], mnist, CPU)
    bad = attackers(experiment)
    before = loop.start()
    for _ in range(2):
        state, (outcome,) = loop.advance(before)
        record = outcome.record
        rows = outcome.clients
        assert record.refused == {str(k): REASONS[kind] for k in bad}
        assert [(row["verdict"], row["reason"], row["score"]) for row in rows] == [
            ("refused", REASONS[kind], None) if k in bad else ("kept", "", 0) for k in range(6)
        ]
        assert [row["malicious"] for row in rows] == [int(k in bad) for k in range(6)]
        assert (record.attackers, record.attackers_filtered, record.filtered) == (2, 2, [])
        honest = sent[-1].only(np.array([k not in bad for k in sent[-1].clients]))
        expected = combine(before.globals_[0], honest, "weighted")
        assert np.array_equal(state.globals_[0].values_JV, expected.values_JV)
        assert np.array_equal(state.globals_[0].present_J, expected.present_J)
        assert record.participants == 6
        before = state


def test_a_class_of_refused_clients_alone_keeps_its_global_prototype(mnist: Dataset) -> None:
    """Attackers behave in round 1; then a class that only they hold stays as they left it."""

    def theirs(seed: int) -> set[int]:
        made = tiny(seed=seed, attack=garbage(start_round=2), model=MLP)
        bad = attackers(made)
        classes = round_loop.deal(made, mnist).classes
        held = [
            {j for k in who for j in classes[k].tolist()}
            for who in (bad, [k for k in range(6) if k not in bad])
        ]
        return held[0] - held[1]

    seed = next(seed for seed in range(50) if theirs(seed))
    experiment = tiny(seed=seed, attack=garbage(start_round=2), model=MLP)
    loop = RoundLoop([experiment], mnist, CPU)
    first, _ = loop.advance(loop.start())
    second, _ = loop.advance(first)
    lost = sorted(theirs(seed))
    assert first.globals_[0].present_J[lost].all()
    assert second.globals_[0].present_J[lost].all()
    assert np.array_equal(second.globals_[0].values_JV[lost], first.globals_[0].values_JV[lost])
    kept = [j for j in np.flatnonzero(first.globals_[0].present_J) if j not in lost]
    assert (second.globals_[0].values_JV[kept] != first.globals_[0].values_JV[kept]).any(1).all()


def test_a_prototype_that_is_no_number_is_refused(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch, sent: list[Uploads]
) -> None:
    class_means = engine.class_means  # type: ignore[attr-defined]

    def broken(*arguments: Any) -> tuple[Tensor, Tensor]:
        means_KJV, counts_KJ = class_means(*arguments)
        means_KJV[2, :, :2] = torch.tensor([torch.nan, torch.inf])
        return means_KJV, counts_KJ

    monkeypatch.setattr(engine, "class_means", broken)
    state, rounds = run([tiny(model=MLP)], mnist, 2)
    for (outcome,) in rounds:
        assert outcome.record.refused == {"2": "20 values are not numbers"}
        assert [row["verdict"] for row in outcome.clients] == [
            "kept",
            "kept",
            "refused",
            "kept",
            "kept",
            "kept",
        ]
        assert outcome.clients[2]["reason"] == "20 values are not numbers"
    assert [uploads.clients for uploads in sent] == [(0, 1, 3, 4, 5)] * 2
    assert (np.abs(state.globals_[0].floats()) < 8).all()


# When they begin


def test_attackers_behave_before_their_round(mnist: Dataset) -> None:
    _, peace = run([tiny(model=MLP)], mnist, 2)
    _, rounds = run([tiny(attack=garbage(start_round=3), model=MLP)], mnist, 3)
    assert [outcome.record.attackers for (outcome,) in rounds] == [0, 0, 2]
    assert [bool(outcome.record.refused) for (outcome,) in rounds] == [False, False, True]
    for (found,), (expected,) in zip(rounds[:2], peace, strict=True):
        assert found.record.accuracy_mean == expected.record.accuracy_mean
        assert found.record.loss == expected.record.loss


def test_attackers_who_are_away_do_not_attack(mnist: Dataset) -> None:
    experiment = tiny(attack=garbage(), participation=0.4, model=MLP)
    bad = set(attackers(experiment))
    _, rounds = run([experiment], mnist, 5)
    there = [bad & set(participants(experiment, number)) for number in range(1, 6)]
    assert {len(some) for some in there} >= {0, 1}, "choose another seed"
    assert [outcome.record.attackers for (outcome,) in rounds] == [len(some) for some in there]
    assert [set(outcome.record.refused) for (outcome,) in rounds] == [
        {str(k) for k in some} for some in there
    ]


def test_stacked_runs_have_their_own_attackers_and_detectors(mnist: Dataset) -> None:
    """One in peace, one attacked, one attacked and with a detector that drops one every round."""
    experiments = [
        tiny(model=MLP),
        tiny(seed=1, attack=garbage(), model=MLP),
        tiny(seed=1, attack=garbage(), detector={"name": "median", "psi": 1}, model=MLP),
    ]
    _, rounds = run(experiments, mnist, 2)
    peace, attacked, dropped = zip(*rounds, strict=True)
    assert [outcome.record.attackers for outcome in (*peace, *attacked, *dropped)] == [
        0,
        0,
        2,
        2,
        2,
        2,
    ]
    assert [set(outcome.record.refused) for outcome in attacked] == [
        {str(k) for k in attackers(experiments[1])}
    ] * 2
    assert [len(outcome.record.filtered) for outcome in (*peace, *attacked, *dropped)] == [
        0,
        0,
        0,
        0,
        1,
        1,
    ]
    for outcome in dropped:
        verdicts = [row["verdict"] for row in outcome.clients]
        assert sorted(verdicts) == ["filtered", "kept", "kept", "kept", "refused", "refused"]
        assert [k for k in range(6) if verdicts[k] == "filtered"] == outcome.record.filtered
        assert all(
            row["score"] >= 0 for row in outcome.clients if row["verdict"] in ("kept", "filtered")
        )


# False labels


def test_a_picture_has_the_label_that_its_holder_believes() -> None:
    """Two clients share pictures 1 and 2; the second believes another label of 1."""
    x = np.arange(4, dtype=np.uint8)[:, None, None, None].repeat(4, 2).repeat(4, 3) * 10
    y = np.array([0, 1, 2, 0])
    dataset = Dataset("toy", x, y, x, y, ("a", "b", "c"), (0.0,), (1 / 255,), "")
    held: tuple[Ints, ...] = (np.array([0, 1, 2]), np.array([1, 2, 3]))
    partition = Partition(held, held, held)
    train, test = client_data([partition], [y[held[0]], np.array([2, 2, 0])], dataset, False, CPU)
    for k, labels in enumerate(([0, 1, 2], [2, 2, 0])):
        own = train.index_KN[k, : train.counts[k]]
        assert train.y[own].tolist() == labels
        assert train.x[own][:, 0, 0, 0].tolist() == [10 * i for i in held[k]]
        there = test.index_KN[k, : test.counts[k]]
        assert test.y[there].tolist() == y[held[k]].tolist()
        assert test.x[there][:, 0, 0, 0].tolist() == [10 * i for i in held[k]]
    assert len(train.x) == 5  # each picture once for every label


def few(mnist: Dataset) -> Dataset:
    """A twentieth of the training samples, so that clients share them."""
    return replace(mnist, train_x=mnist.train_x[::20], train_y=mnist.train_y[::20])


@pytest.mark.parametrize("method", ["fedrfq", "fedavg", "local"])
def test_flipped_labels_reach_the_attackers_alone(
    mnist: Dataset, method: str, sent: list[Uploads]
) -> None:
    """Honest clients with the same images keep the right labels, and all are tested with these."""
    dataset = few(mnist)
    experiment = tiny(
        attack={"name": "label-flip", "clients": 2},
        partition={"share": True, "shots": 15},
        method={"name": method},
        model=MLP,
    )
    loop = RoundLoop([experiment], dataset, CPU)
    (engine,) = loop.engines
    (partition,) = loop.partitions
    bad = attackers(experiment)
    right = {k: dataset.train_y[index] for k, index in enumerate(partition.train)}
    believed = {
        k: engine.shares.y[engine.shares.index_KN[k, : len(right[k])]].numpy() for k in range(6)
    }
    for k in range(6):
        images = engine.shares.x[engine.shares.index_KN[k, : len(right[k])]]
        pixels = torch.from_numpy(dataset.train_x[partition.train[k]]).float() / 255
        torch.testing.assert_close(images, (pixels - mnist.mean[0]) / mnist.std[0])
        assert (believed[k] != right[k]).all() if k in bad else (believed[k] == right[k]).all()
        tests = engine.tests.y[engine.tests.index_KN[k, : engine.tests.counts[k]]].numpy()
        assert np.array_equal(tests, dataset.test_y[partition.test[k]])
    honest = np.concatenate([partition.train[k] for k in range(6) if k not in bad])
    assert any(np.isin(partition.train[k], honest).any() for k in bad)
    _, (outcome,) = loop.advance(loop.start())
    assert (outcome.record.attackers, outcome.record.refused) == (2, {})
    if METHODS[method].exchanges:
        for k in range(6):
            assert sent[0].counts_KJ[k].tolist() == np.bincount(believed[k], minlength=10).tolist()


def test_false_labels_are_drawn_by_seed_and_client(mnist: Dataset) -> None:
    """Six attackers who hold the same thirty samples of ten classes."""
    same: Ints = np.concatenate([np.flatnonzero(mnist.train_y == j)[:3] for j in range(10)])
    partition = Partition((same,) * 6, (same,) * 6, (np.arange(10),) * 6)

    def labels(seed: int) -> list[list[int]]:
        made = tiny(seed=seed, attack={"name": "label-flip", "clients": 6, "to": "any"})
        return [
            own.tolist()
            for own in round_loop.believed_labels(made, partition, attackers(made), mnist)
        ]

    assert labels(0) == labels(0)
    assert len({tuple(own) for seed in (0, 1) for own in labels(seed)}) == 12


# What is recorded


def test_honest_figures_and_reasons_by_hand_from_the_files(tmp_path: Path) -> None:
    more = [
        "rounds=3",
        "attack.name=garbage",
        "attack.kind=negative",
        "attack.clients=2",
        "attack.start_round=2",
    ]
    more += ["model.name=mlp", "model.width=20", "detector.name=median", "detector.psi=2"]
    done = fedrfq("run", *sets([*SMALL, *more]), "--out", tmp_path, "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    path = Path(result["run_dir"])
    rows = clients(path)
    rounds = records(path)
    for number, record in enumerate(rounds, start=1):
        mine = [row for row in rows if row["round"] == str(number)]
        honest = [row for row in mine if row["malicious"] == "0"]
        assert (len(mine), len(honest)) == (6, 4)
        for key, column in (
            ("honest_accuracy_mean", "accuracy"),
            ("honest_prototype_accuracy_mean", "prototype_accuracy"),
        ):
            assert record[key] == pytest.approx(np.mean([float(row[column]) for row in honest]))
        assert record["accuracy_mean"] == pytest.approx(
            np.mean([float(row["accuracy"]) for row in mine])
        )
        bad = [row["client"] for row in mine if row["malicious"] == "1"]
        assert record["refused"] == ({} if number == 1 else dict.fromkeys(bad, REASONS["negative"]))
        for row in mine:
            refused = number > 1 and row["malicious"] == "1"
            assert (row["verdict"] == "refused") == refused
            reasons = record["refused"] | record["reasons"]
            assert row["reason"] == reasons.get(row["client"], "")
            assert (row["reason"] == REASONS["negative"]) == refused
            assert row["weight"] == {"kept": "100.0", "filtered": "0.0"}.get(row["verdict"], "")
            assert (row["score"] == "") == refused
            assert (row["verdict"] == "filtered") == (int(row["client"]) in record["filtered"])
        assert len(record["filtered"]) == 2
    # Dropped: 2 in the first round, then 2 and 2 refused. Attacks: none, then 2 and 2, all refused.
    assert result["detector_precision"] == pytest.approx(4 / 10)
    assert result["detector_recall"] == 1
    last = rounds[-1]
    assert result["honest_accuracy_mean"] == last["honest_accuracy_mean"] != last["accuracy_mean"]
    assert result["honest_prototype_accuracy_mean"] == last["honest_prototype_accuracy_mean"]


def test_honest_figures_without_anyone_honest_and_without_attackers(mnist: Dataset) -> None:
    _, ((nobody,),) = run([tiny(attack={"name": "sign-flip", "clients": 6}, model=MLP)], mnist, 1)
    assert np.isnan(nobody.record.honest_accuracy_mean)
    assert nobody.record.honest_prototype_accuracy_mean is not None
    assert np.isnan(nobody.record.honest_prototype_accuracy_mean)
    _, ((all_,),) = run([tiny(model=MLP)], mnist, 1)
    assert all_.record.honest_accuracy_mean == all_.record.accuracy_mean
    assert all_.record.honest_prototype_accuracy_mean == all_.record.prototype_accuracy_mean


def test_precision_and_recall_of_detection(mnist: Dataset) -> None:
    """Of uploads over all rounds; without any dropped, or any attack, there is no such figure."""
    _, ((outcome,),) = run([tiny(model=MLP)], mnist, 1)

    def of(*rounds: tuple[int, int, list[int], list[int]]) -> tuple[float | None, float | None]:
        made: list[RoundRecord] = [
            replace(
                outcome.record,
                attackers=there,
                attackers_filtered=found,
                filtered=filtered,
                refused={str(k): "why" for k in refused},
            )
            for there, found, filtered, refused in rounds
        ]
        figures = detection(made)
        return figures["detector_precision"], figures["detector_recall"]

    assert of((0, 0, [], []), (0, 0, [], [])) == (None, None)
    assert of((0, 0, [1], []), (0, 0, [], [])) == (0, None)
    assert of((2, 0, [], []), (2, 0, [], [])) == (None, 0)
    assert of((0, 0, [4], []), (3, 2, [1, 5], [2]), (3, 1, [1], [])) == (3 / 5, 3 / 6)


def test_honest_clients_weight_and_the_longest_time_one_was_shut_out(mnist: Dataset) -> None:
    """A round in which a client takes no part neither counts nor ends its time."""
    experiment = tiny(model=MLP, attack={"name": "swap", "clients": 2}, participation=0.5)
    bad = set(attackers(experiment))
    there = [set(participants(experiment, number)) for number in range(1, 31)]
    client = next(k for k in range(6) if k not in bad)
    took_part = [number for number, who in enumerate(there, 1) if client in who]
    _, ((outcome,),) = run([experiment], mnist, 1)

    def of(out: set[int], lost: float | None = 1.0) -> Influence:
        made = [
            replace(
                outcome.record,
                round=number,
                # Attackers are shut out for ever, which is nobody's loss.
                filtered=sorted(bad & who),
                refused={str(client): "why"} if number in out else {},
                honest_weight_lost=lost and lost * number,
            )
            for number, who in enumerate(there, 1)
        ]
        return influence(experiment, made)

    assert of(set()) == {"honest_weight_lost": 15.5, "longest_shut_out": 0}
    assert of({*took_part[1:4], took_part[5]})["longest_shut_out"] == 3
    assert of(set(), None) == {"honest_weight_lost": None, "longest_shut_out": None}


def test_less_weight_is_recorded_with_its_reason(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector halves the weight of client 1: one of six clients loses half of its weight."""
    monkeypatch.setitem(DETECTORS, "halving", Halving)
    halving = {"name": "halving", "clip": False}
    _, ((outcome,),) = run([tiny(model=MLP, detector=halving)], mnist, 1)
    why = outcome.clients[1]["reason"]
    assert why.endswith("far from the other holders (weight 50 %)")
    assert outcome.record.reasons == {"1": why}
    assert [row["weight"] for row in outcome.clients] == [100, 50, 100, 100, 100, 100]
    assert [row["verdict"] for row in outcome.clients] == ["kept"] * 6
    assert outcome.record.filtered == []
    held = [row["classes"] for row in outcome.clients]
    assert outcome.record.honest_weight_lost == pytest.approx(50 * held[1] / sum(held))


def test_without_attack_and_detector_there_is_no_precision_or_recall(whole: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    assert result["detector_precision"] is None
    assert result["detector_recall"] is None
    assert result["honest_accuracy_mean"] == result["accuracy_mean"]


def test_clients_drawn_for_no_attack_are_nobody_to_be_found(mnist: Dataset) -> None:
    _, ((outcome,),) = run([tiny(model=MLP, attack={"name": "none", "clients": 2})], mnist, 1)
    assert outcome.record.attackers == 0


def test_a_malicious_client_whose_training_diverges_is_refused_and_the_round_goes_on(
    mnist: Dataset,
) -> None:
    loop = RoundLoop([tiny(attack={"name": "swap", "clients": 2})], mnist, CPU)
    state = loop.start()
    lost = loop.malicious[0][0]
    state.params[0]["fc1.weight"][lost] = float("nan")
    state, (outcome,) = loop.advance(state)
    assert list(outcome.record.refused) == [str(lost)]
    assert "not numbers" in outcome.clients[lost]["reason"]
    assert state.globals_[0].present_J.any()
    honest = next(k for k in range(6) if k not in loop.malicious[0])
    state.params[0]["fc1.weight"][honest] = float("nan")
    with pytest.raises(Diverged, match=f"client {honest} "):
        loop.advance(state)


def test_an_attack_by_nobody_is_a_mistake() -> None:
    with pytest.raises(UserError, match="attack 'swap' has no attackers: set attack"):
        tiny(attack={"name": "swap"})


def test_a_run_without_anyone_honest_can_be_shown(tmp_path: Path) -> None:
    done = fedrfq(
        "run",
        *sets([*SMALL, "rounds=1", "attack.name=scale", "attack.clients=6"]),
        "--out",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "–; by prototype –" in done.stdout
