"""The common test: figures done by hand, and which samples all clients are tested on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning import all_classes, metrics
from fedrfq.learning.all_classes import COMMON_COLUMNS, CommonFigures, GlobalPrototypes, measure
from fedrfq.learning.draws import common_test
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import RoundLoop, deal
from fedrfq.methods import METHODS
from fedrfq.prototypes.fixed_point import Globals
from support.small import CPU, run, tiny

SMALL_MODEL = {"name": "mlp", "width": 20}


def sure(guesses: list[list[int]], classes: int = 3, confidence: float = 0.8) -> Tensor:
    """Return log-probabilities that give each guess this confidence, and the rest the others."""
    rest = (1 - confidence) / (classes - 1)
    one_hot = torch.nn.functional.one_hot(torch.tensor(guesses), classes).float()
    return (one_hot * (confidence - rest) + rest).log()


# By hand


def by_hand() -> CommonFigures:
    """Two clients and six samples of three classes, the last of which is padding.

    The first client holds class 0, and guesses 0, 0, 0, 1, 2; the second holds all of them, and is
    right but for the first sample. Both are 80 % sure of everything they say.
    """
    y = torch.tensor([[0, 0, 1, 1, 2, 0]]).expand(2, -1)
    weight = torch.tensor([[1.0, 1, 1, 1, 1, 0]]).expand(2, -1)
    guesses = [[0, 0, 0, 1, 2, 0], [1, 0, 1, 1, 2, 0]]
    held = torch.tensor([[True, False, False], [True, True, True]])
    ways = {"head": sure(guesses), "prototype": sure([[0] * 6] * 2, confidence=0.6)}
    return measure(ways, "head", y, weight, held, torch.zeros(2))


def test_accuracies_on_classes_held_and_not_held() -> None:
    """Each class counts alike, though class 2 has one sample and the others have two."""
    head = by_hand().ways["head"]
    assert head.recall_KJ.tolist() == [[100, 50, 100], [50, 100, 100]]
    assert head.accuracy_all_K == pytest.approx([250 / 3, 250 / 3])
    assert head.accuracy_held_K == pytest.approx([100, 250 / 3])
    assert head.accuracy_unheld_K[0] == 75
    assert math.isnan(head.accuracy_unheld_K[1])  # it holds everything


def test_calibration_is_the_gap_between_what_is_said_and_what_is_right() -> None:
    """Four of five are right, and each was said to be right with 80 %: no gap at all."""
    figures = by_hand().ways
    assert figures["head"].ece_K == pytest.approx([0, 0], abs=1e-5)
    # Two of five are right, and each was said to be with 60 %.
    assert figures["prototype"].ece_K == pytest.approx([20, 20], abs=1e-5)


def test_gaps_of_different_bins_do_not_cancel_out() -> None:
    """Two samples at 0.9, one of them right, and two at 0.5, both right: (2·0.4 + 2·0.5) / 4."""
    confidence = torch.tensor([[0.9, 0.9, 0.5, 0.5]])
    right = torch.tensor([[1.0, 0, 1, 1]])
    found = metrics.calibration_error(right, confidence, torch.ones(1, 4))
    assert found == pytest.approx([45], abs=1e-4)


@pytest.mark.parametrize(("other", "expected"), [(0.93, 41.5), (0.94, 52)])
def test_there_are_fifteen_bins(other: float, expected: float) -> None:
    """0.9, which is right, and 0.93, which is wrong, are in one bin; 0.94 is in the next."""
    confidence = torch.tensor([[0.9, other]])
    found = metrics.calibration_error(torch.tensor([[1.0, 0]]), confidence, torch.ones(1, 2))
    assert found == pytest.approx([expected], abs=1e-4)


def test_a_record_has_means_the_worst_client_and_the_recall_of_each_class() -> None:
    found = by_hand().record(np.array([True, True]))
    assert found["accuracy_all"] == found["head_accuracy_all"] == pytest.approx(250 / 3)
    assert found["accuracy_held"] == pytest.approx((100 + 250 / 3) / 2)
    assert found["accuracy_unheld"] == 75  # of the one client that lacks a class
    assert found["prototype_accuracy_all"] == pytest.approx(100 / 3)
    assert found["prototype_accuracy_unheld"] == 0
    assert found["recall"] == [75, 75, 100]
    assert "public_accuracy_all" not in found
    assert found.keys() <= RoundRecord.__dataclass_fields__.keys()


def test_the_final_prediction_may_be_any_way() -> None:
    figures = replace(by_hand(), final="prototype")
    found = figures.record(np.array([True, True]))
    assert found["accuracy_all"] == found["prototype_accuracy_all"]
    assert figures.client(0)["accuracy_held"] == 100
    assert figures.client(0)["head_accuracy_unheld"] == 75
    assert figures.client(1)["accuracy_unheld"] is None


def test_the_worst_client_is_an_honest_one() -> None:
    y = torch.tensor([[0, 1]]).expand(2, -1)
    ways = {"head": sure([[0, 1], [1, 0]], 2)}
    figures = measure(ways, "head", y, torch.ones(2, 2), torch.ones(2, 2) > 0, torch.zeros(2))
    assert figures.record(np.array([True, True]))["accuracy_all_worst"] == 0
    assert figures.record(np.array([True, False]))["accuracy_all_worst"] == 100
    assert figures.record(np.array([False, False]))["accuracy_all_worst"] is None


def test_below_the_threshold_nothing_is_answered() -> None:
    """Three real samples at 0.9, 0.6 and 0.9, the second right and the third wrong."""
    y = torch.tensor([[0, 1, 0, 0]]).expand(3, -1)
    weight = torch.tensor([[1.0, 1, 1, 0]]).expand(3, -1)
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [1.0, 0.0]])
    ways = {"head": probabilities.log().expand(3, -1, -1)}
    held = torch.ones(3, 2) > 0
    figures = measure(ways, "head", y, weight, held, torch.tensor([0.7, 0.5, 0.95]))
    head = figures.ways["head"]
    assert head.answered_K == pytest.approx([200 / 3, 100, 0])
    assert head.accuracy_answered_K[:2] == pytest.approx([50, 200 / 3])
    assert math.isnan(head.accuracy_answered_K[2])
    record = figures.record(np.array([True, True, True]))
    assert record["answered"] == pytest.approx(500 / 9)
    assert record["accuracy_answered"] == pytest.approx(175 / 3)


def test_without_a_threshold_everything_is_answered_and_nothing_is_said_of_it() -> None:
    record = by_hand().record(np.array([True, True]))
    assert record["answered"] is None
    assert record["accuracy_answered"] is None


def test_what_is_not_a_number_predicts_nothing() -> None:
    """Not even class 0, as where there is no global prototype at all."""
    y = torch.tensor([[0, 0]])
    known = GlobalPrototypes.of([Globals.none(2, 3)], CPU)
    ways = {"prototype": known.log_probabilities(torch.ones(1, 2, 3))}
    held = torch.ones(1, 2) > 0
    found = measure(ways, "prototype", y, torch.ones(1, 2), held, torch.zeros(1)).client(0)
    assert (found["accuracy_all"], found["ece"]) == (0, 0)


def test_prototypes_predict_by_the_softmax_of_minus_the_squared_distance() -> None:
    """A sample at 0, prototypes at 1 and 2, and one of a class that has none."""
    values = torch.tensor([[[1.0], [2.0], [0.0]]])
    known = GlobalPrototypes(values, torch.tensor([[True, True, False]]))
    found = known.log_probabilities(torch.zeros(1, 1, 1)).exp().flatten().tolist()
    total = math.exp(-1) + math.exp(-4)
    assert found == pytest.approx([math.exp(-1) / total, math.exp(-4) / total, 0])


def test_figures_come_back_as_they_were_packed() -> None:
    figures = by_hand()
    again = CommonFigures.unpacked(figures.packed())
    assert again.ways.keys() == figures.ways.keys()
    for k in range(2):
        assert again.client(k) == figures.client(k)
    assert again.record(np.ones(2, bool)) == figures.record(np.ones(2, bool))


# Which samples


def common_of(experiment: Experiment, dataset: Dataset) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the common test set, and whether it is of training samples."""
    found = common_test(experiment, deal(experiment, dataset), dataset)
    assert all(np.array_equal(own, found.test[0]) for own in found.test)
    return found.test[0], found.held_out


@pytest.mark.parametrize("partition", ["classes", "dirichlet", "iid"])
def test_it_has_as_many_test_samples_of_every_class(mnist: Dataset, partition: str) -> None:
    experiment = from_table({"clients": 6, "partition": {"name": partition}})
    common, held_out = common_of(experiment, mnist)
    assert not held_out
    assert len(np.unique(common)) == len(common)
    assert np.bincount(mnist.test_y[common]).tolist() == [40] * 10


def test_of_a_rare_class_it_has_all_there_are_and_of_a_class_without_any_none(
    mnist: Dataset,
) -> None:
    kept = np.flatnonzero(mnist.test_y != 7)
    rare = np.flatnonzero(mnist.test_y == 7)[:3]
    index = np.concatenate([kept, rare])
    few = replace(mnist, test_x=mnist.test_x[index], test_y=mnist.test_y[index])
    # Clients that hold everything could not be tested on a rare class: these hold two.
    experiment = tiny(partition={"test_shots": 3})
    common, _ = common_of(experiment, few)
    assert np.bincount(few.test_y[common])[7] == 3
    without = replace(mnist, test_x=mnist.test_x[kept], test_y=mnist.test_y[kept])
    found = common_test(experiment, deal(experiment, mnist), without).test[0]
    assert np.bincount(without.test_y[found], minlength=10)[7] == 0


def test_writers_that_hold_back_samples_are_tested_on_test_samples(mnist: Dataset) -> None:
    """Their writers have none, so each is tested on its own; the common ones are of others."""
    writers = np.arange(len(mnist.train_y)) % 40
    strangers = np.arange(len(mnist.test_y)) % 4 + 100
    dataset = replace(mnist, train_groups=writers, test_groups=strangers)
    experiment = from_table({"clients": 3, "partition": {"name": "groups"}})
    assert deal(experiment, dataset).held_out
    common, held_out = common_of(experiment, dataset)
    assert not held_out
    assert np.bincount(mnist.test_y[common]).tolist() == [40] * 10


def test_it_is_drawn_by_the_seed(mnist: Dataset) -> None:
    one, again, other = (common_of(tiny(seed=seed), mnist)[0] for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("share", [False, True])
def test_with_validation_it_has_held_back_samples_that_nobody_trains_on(
    mnist: Dataset, share: bool
) -> None:
    """Where clients share samples, one may train on what another holds back."""
    partition = {"shots": 40, "share": share}
    experiment = tiny(clients=12, validation=0.5, partition=partition, model=SMALL_MODEL)
    dealt = deal(experiment, mnist)
    common, held_out = common_of(experiment, mnist)
    assert held_out
    trained = np.unique(np.concatenate(dealt.train))
    held_back = np.unique(np.concatenate(dealt.test))
    assert bool(len(np.intersect1d(trained, held_back))) == share
    assert not len(np.intersect1d(common, trained))
    assert set(common) <= set(held_back)
    counts = np.bincount(mnist.train_y[common])
    assert counts.max() == 40
    assert len(np.unique(common)) == len(common)


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_clients_see_these_samples(mnist: Dataset, validation: float) -> None:
    """The same pictures and labels for all clients, and none of them in anybody's training data."""
    experiment = tiny(validation=validation, model=SMALL_MODEL)
    loop = RoundLoop([experiment], mnist, CPU)
    index, held_out = common_of(experiment, mnist)
    x = mnist.train_x if held_out else mnist.test_x
    y = mnist.train_y if held_out else mnist.test_y
    tests = loop.common.tests
    pixels = (torch.from_numpy(x[index]).float() / 255 - mnist.mean[0]) / mnist.std[0]
    for row in tests.index_KN:
        torch.testing.assert_close(tests.x[row], pixels)
        assert np.array_equal(tests.y[row].numpy(), y[index])
    (engine,) = loop.engines
    trained = {image.numpy().tobytes() for image in engine.shares.x}
    assert not trained & {image.numpy().tobytes() for image in tests.x}


# In a run


@pytest.mark.parametrize("method", METHODS)
def test_the_last_round_has_every_figure(mnist: Dataset, method: str) -> None:
    """And one that ends with a checkpoint; the rounds between have none."""
    experiment = tiny(method={"name": method}, checkpoint=2)
    _, rounds = run([experiment], mnist, 3)
    records = [outcome.record for (outcome,) in rounds]
    assert [record.accuracy_all is not None for record in records] == [False, True, True]
    last = records[-1]
    for record in records[1:]:
        assert record.accuracy_all == record.head_accuracy_all
        assert record.recall is not None
        assert record.accuracy_all == pytest.approx(np.mean(record.recall))
        assert 0 <= (record.ece or -1) <= 100
        assert (record.accuracy_all_worst or 0) <= record.accuracy_all
        by_prototype = record.prototype_accuracy_all is not None
        assert by_prototype == (record.prototype_accuracy_mean is not None)
    (outcome,) = rounds[-1]
    rows = [row["accuracy_held"] for row in outcome.clients]
    assert last.accuracy_held == pytest.approx(np.mean(rows))
    assert all(row[name] is None for row in rounds[0][0].clients for name in COMMON_COLUMNS)


def test_it_is_the_models_own_answer_on_these_samples(mnist: Dataset) -> None:
    """With two cohorts and two runs stacked: each client's own model, on its own run's samples."""
    cohorts = [
        {"clients": 4, **SMALL_MODEL},
        {"clients": 2, "name": "cnn"},
    ]
    experiments = [tiny(seed=seed, cohorts=cohorts, rounds=1) for seed in (0, 1)]
    loop = RoundLoop(experiments, mnist, CPU)
    state, outcomes = loop.advance(loop.start())
    for r, outcome in enumerate(outcomes):
        for cohort, engine in zip(range(2), loop.engines, strict=True):
            for place, k in enumerate(loop.cohorts[cohort]):
                row = r * len(loop.cohorts[cohort]) + place
                own = {name: p[row : row + 1] for name, p in state.params[cohort].items()}
                tests = loop.common.tests.of([r * 6 + k])
                c, logits = engine.features(own, tests)
                y = tests.y[tests.index_KN[0]]
                held = torch.isin(y, torch.from_numpy(loop.partitions[r].classes[k]))
                right = logits[0].argmax(-1) == y
                found = outcome.clients[k]
                assert found["accuracy_all"] == pytest.approx(100 * right.float().mean().item())
                assert found["accuracy_held"] == pytest.approx(
                    100 * right[held].float().mean().item()
                )
                assert found["accuracy_unheld"] == pytest.approx(
                    100 * right[~held].float().mean().item()
                )
                known = GlobalPrototypes.of([state.globals_[r]], CPU)
                nearest = metrics.nearest(
                    metrics.distances(engine.program.pool(c), known.values_KJV), known.present_KJ
                )
                accuracy = 100 * (nearest[0] == y).float().mean().item()
                assert found["prototype_accuracy_all"] == pytest.approx(accuracy)


def test_many_clients_are_tested_some_at_a_time(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = RoundLoop([tiny(), tiny(seed=1)], mnist, CPU)
    state = loop.start()

    def found() -> list[list[float | None]]:
        figures = loop.common.measure(loop.engines, state.params, state.globals_)
        return [[one.client(k)["accuracy_all"] for k in range(6)] for one in figures]

    together = found()
    # Four hundred samples each: five clients at once.
    monkeypatch.setattr(all_classes, "_AT_ONCE", 2000)
    assert found() == together
    assert len({accuracy for run_ in together for accuracy in run_}) > 2


@pytest.mark.parametrize("at_once", [1 << 17, 2000])
def test_a_run_without_prototypes_is_tested_beside_one_that_has_them(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """As where a detector dropped every upload of one run: each has the figures it has alone."""
    monkeypatch.setattr(all_classes, "_AT_ONCE", at_once)
    pair = [tiny(), tiny(seed=1)]
    nothing = RoundLoop(pair, mnist, CPU).start().globals_[0]
    values = np.random.default_rng(0).integers(0, 1 << 16, nothing.values_JV.shape)
    known = [nothing, Globals(np.ones_like(nothing.present_J), values)]

    def records(some: list[Experiment], globals_: list[Globals]) -> list[dict[str, Any]]:
        loop = RoundLoop(some, mnist, CPU)
        found = loop.common.measure(loop.engines, loop.start().params, globals_)
        return [one.record(np.ones(6, np.bool_)) for one in found]

    for order in ([0, 1], [1, 0]):
        stacked = records([pair[r] for r in order], [known[r] for r in order])
        assert stacked == [records([pair[r]], [known[r]])[0] for r in order]
        assert ["prototype_ece" in record for record in stacked] == [r == 1 for r in order]
