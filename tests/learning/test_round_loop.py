"""The round loop: the same twice, stacked or alone, against stock models; and what is recorded."""

from __future__ import annotations

from dataclasses import replace
from math import dist
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.engine import counter_rng
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning import metrics
from fedrfq.learning.round_loop import (
    Diverged,
    LoopState,
    RoundLoop,
    deal,
    participants,
    targets,
)
from fedrfq.methods import METHODS
from fedrfq.prototypes.fixed_point import Globals, Uploads, encode
from support import reference
from support.small import CPU, equal, rows_of, run, timeless, tiny


def stock_features(
    loop: RoundLoop, state: LoopState, client: int, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """C, logits and labels of a client's samples by the stock CNN, straight from the dataset."""
    dataset = loop.dataset
    partition = loop.partitions[0]
    index = (partition.train if train else partition.test)[client]
    if train:
        x = dataset.train_x
        y = dataset.train_y
    else:
        x = dataset.test_x
        y = dataset.test_y
    model = reference.CNN(dataset.shape, len(dataset.classes)).eval()
    model.load_state_dict({name: p[client] for name, p in state.params[0].items()})
    images = (torch.from_numpy(x[index]).float() / 255 - dataset.mean[0]) / dataset.std[0]
    with torch.no_grad():
        return *model(images), torch.from_numpy(y[index])


# The same again


@pytest.mark.parametrize("method", METHODS)
def test_the_same_experiment_twice_is_the_same(mnist: Dataset, method: str) -> None:
    experiment = tiny(method={"name": method})
    (one, rows), (two, again) = (run([experiment], mnist, 2) for _ in range(2))
    assert [timeless(o) for r in rows for o in r] == [timeless(o) for r in again for o in r]
    assert equal(one.params, two.params)
    assert one.globals_[0].values_JV.tobytes() == two.globals_[0].values_JV.tobytes()


def test_runs_stacked_are_each_alone(mnist: Dataset) -> None:
    """Seeds, λ and aggregation may differ: each run has its own partition, start and prototypes."""
    first = tiny(seed=0)
    second = tiny(seed=1, method={"lam": 0.2, "aggregate": "mean"})
    both, rows = run([first, second], mnist, 2)
    for r, experiment in enumerate((first, second)):
        alone, own = run([experiment], mnist, 2)
        here = rows_of(both.params[0], slice(6 * r, 6 * r + 6))
        torch.testing.assert_close(here, alone.params[0], rtol=1e-3, atol=1e-4)
        units = np.abs(both.globals_[r].values_JV - alone.globals_[0].values_JV)
        assert units.max() < 20  # thousandths
        for outcomes, (lone,) in zip(rows, own, strict=True):
            found = timeless(outcomes[r])
            expected = timeless(lone)
            assert found["bytes_up"] == expected["bytes_up"]
            assert found["accuracy_mean"] == pytest.approx(expected["accuracy_mean"], abs=1.5)
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
            for key in ("classes", "samples", "trained"):
                assert [row[key] for row in found["clients"]] == [
                    row[key] for row in expected["clients"]
                ]
    partitions = RoundLoop([first, second], mnist, CPU).partitions
    for partition, experiment in zip(partitions, (first, second), strict=True):
        alone_dealt = deal(experiment, mnist)
        assert all(
            np.array_equal(a, b) for a, b in zip(partition.train, alone_dealt.train, strict=True)
        )
        assert all(
            np.array_equal(a, b) for a, b in zip(partition.test, alone_dealt.test, strict=True)
        )
    assert not np.array_equal(partitions[0].train[0], partitions[1].train[0])


@pytest.mark.parametrize(
    "other",
    [
        {"train": {"lr": 0.1}},
        {"participation": 0.5},
        {"method": {"reduction": "classes"}},
        {"pool": {"stride": 2}},
        {"model": {"channels": 18}},
        {"data": {"augment": True}},
        {"clients": 5},
    ],
)
def test_runs_of_different_programs_are_not_stacked(mnist: Dataset, other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="cannot be stacked"):
        RoundLoop([tiny(), tiny(**other)], mnist, CPU)


def test_a_round_leaves_the_given_state_alone(mnist: Dataset) -> None:
    loop = RoundLoop([tiny()], mnist, CPU)
    state, _ = loop.advance(loop.start())
    params = tuple({name: p.clone() for name, p in cohort.items()} for cohort in state.params)
    values = state.globals_[0].values_JV.copy()
    after, outcomes = loop.advance(state)
    assert equal(state.params, params)
    assert np.array_equal(state.globals_[0].values_JV, values)
    again, repeated = loop.advance(state)  # as from a checkpoint
    assert equal(after.params, again.params)
    assert timeless(outcomes[0]) == timeless(repeated[0])
    assert (state.round, after.round) == (1, 2)


def test_rounds_are_the_plain_loop(mnist: Dataset) -> None:
    """Train each client in the slow twin, with its key, the round's global prototypes and λ."""
    experiment = tiny(seed=3, method={"lam": 0.5})
    loop = RoundLoop([experiment], mnist, CPU)
    state = loop.start()
    settings = reference.Settings(1, 4, 0.05, 0.5, 0.5, 70)
    for round_ in (1, 2):
        after, (outcome,) = loop.advance(state)
        vectors = torch.from_numpy(state.globals_[0].floats())
        known = {j: vectors[j] for j in np.flatnonzero(state.globals_[0].present_J).tolist()}
        for client in range(6):
            model = reference.CNN(mnist.shape, 10)
            model.load_state_dict({name: p[client] for name, p in state.params[0].items()})
            index = loop.partitions[0].train[client]
            x = (torch.from_numpy(mnist.train_x[index]).float() / 255 - 0.1307) / 0.3081
            y = torch.from_numpy(mnist.train_y[index])
            key = counter_rng.key(3, client, round_)
            options = {"lam": 0.5, "reduction": "samples"}
            losses = reference.train(
                model.double(), x.double(), y, key, settings, "fedrfq", options, known
            )
            expected = {name: p.float() for name, p in reference.state(model).items()}
            found = {name: p[client] for name, p in after.params[0].items()}
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
            row = outcome.clients[client]
            assert [row["loss_classification"], row["loss_prototype"]] == pytest.approx(
                losses[1:].tolist(), rel=1e-3
            )
        state = after


def test_starts_are_each_clients_own_or_the_same(mnist: Dataset) -> None:
    own, same, other = (
        RoundLoop([e], mnist, CPU).start().params[0]["fc1.weight"]
        for e in (tiny(), tiny(init="same"), tiny(init="same", seed=1))
    )
    assert len({p.numpy().tobytes() for p in own}) == 6
    assert len({p.numpy().tobytes() for p in same}) == 1
    assert torch.equal(own[0], same[0])
    assert not torch.equal(same[0], other[0])


# What leaves a client, and what is recorded


def test_uploads_are_the_quantised_means_of_the_pooled_features(
    mnist: Dataset, sent: list[Uploads]
) -> None:
    """Means are over the training data, by the trained model, without dropout: V = 24 of 50."""
    loop = RoundLoop([tiny()], mnist, CPU)
    state, outcomes = loop.advance(loop.start())
    (uploads,) = sent
    assert uploads.values_KJV.shape == (6, 10, 24)
    held = 0
    for client in range(6):
        c, _, y = stock_features(loop, state, client, train=True)
        p = reference.softpool(c.double())
        for j in range(10):
            own = p[y == j]
            assert uploads.counts_KJ[client, j] == len(own)
            held += len(own) > 0
            if len(own):
                expected = own.mean(0).numpy() * 2**14
                assert (
                    np.abs(uploads.values_KJV[client, j] - expected).max() < 0.6
                )  # half a unit, and float rounding
    record = outcomes[0].record
    assert record.parameters_up == 24 * held
    assert record.bytes_up == 6 * 18 + held * (6 + 3 * 24)
    present = int(state.globals_[0].present_J.sum())
    assert record.parameters_down == 6 * 24 * present
    assert record.bytes_down == 6 * (18 + present * (6 + 3 * 24))
    assert record.saturated == 0


def test_saturated_values_are_counted(mnist: Dataset, sent: list[Uploads]) -> None:
    loop = RoundLoop([tiny(train={"lr": 1e-6})], mnist, CPU)
    state = loop.start()
    state.params[0]["fc1.bias"][2] = 100  # every value of client 2 is beyond 64
    _, outcomes = loop.advance(state)
    classes = len(loop.partitions[0].classes[2])
    assert outcomes[0].record.saturated == 24 * classes
    assert (sent[0].values_KJV[2][sent[0].counts_KJ[2] > 0] == 2**20 - 1).all()


def closest(vector: list[float], known: dict[int, list[float]]) -> int:
    return min(known, key=lambda j: dist(vector, known[j]))


def test_figures_by_hand(mnist: Dataset) -> None:
    """Every accuracy, and prototype failure, from stock models and loops over samples."""
    loop = RoundLoop([tiny(seed=1)], mnist, CPU)
    state = loop.start()
    for _ in range(2):
        state, (outcome,) = loop.advance(state)
    known = {
        j: row
        for j, row in enumerate(state.globals_[0].floats().tolist())
        if state.globals_[0].present_J[j]
    }
    head = []
    near = []
    own = []
    points = []
    for client in range(6):
        c, logits, y = stock_features(loop, state, client, train=False)
        held = loop.partitions[0].classes[client].tolist()
        p = reference.softpool(c.double()).tolist()
        head.append(100 * (logits.argmax(1) == y).double().mean().item())
        near.append(
            100
            * np.mean([closest(v, known) == label for v, label in zip(p, y.tolist(), strict=True)])
        )
        mine = {j: known[j] for j in held}
        own.append(
            100
            * np.mean([closest(v, mine) == label for v, label in zip(p, y.tolist(), strict=True)])
        )
        points += list(zip(p, y.tolist(), strict=True))
    failed = [
        dist(first, known[j]) > dist(second, known[j])
        for j in known
        for first, label in points
        for second, other in points
        if label == j != other
    ]
    record = outcome.record
    rows = outcome.clients
    assert [row["accuracy"] for row in rows] == pytest.approx(head)
    assert [row["prototype_accuracy"] for row in rows] == pytest.approx(near)
    assert [row["prototype_accuracy_own"] for row in rows] == pytest.approx(own)
    assert record.accuracy_mean == pytest.approx(np.mean(head))
    assert record.accuracy_std == pytest.approx(np.std(head))
    counts = np.array([len(test) for test in loop.partitions[0].test])
    assert record.accuracy_std_running == pytest.approx(metrics.running_std(np.array(head), counts))
    assert record.prototype_accuracy_mean == pytest.approx(np.mean(near))
    assert record.prototype_accuracy_std == pytest.approx(np.std(near))
    assert record.prototype_accuracy_own_mean == pytest.approx(np.mean(own))
    assert np.mean(own) > np.mean(near) + 1
    assert record.prototype_failure == pytest.approx(np.mean(failed), abs=2e-4)
    assert 0 < np.mean(failed) < 0.5
    assert [row["classes"] for row in rows] == [len(held) for held in loop.partitions[0].classes]
    assert [row["samples"] for row in rows] == [7 * row["classes"] for row in rows]
    assert record.samples == sum(row["samples"] for row in rows)
    losses = [(row["loss_classification"], row["loss_prototype"]) for row in rows]
    assert (record.loss_classification, record.loss_prototype) == pytest.approx(
        np.mean(losses, 0).tolist()
    )
    assert record.loss == pytest.approx(
        record.loss_classification + (record.loss_prototype or 0)
    )  # λ = 1


@pytest.mark.parametrize("method", METHODS)
def test_prototype_loss_begins_with_the_first_prototypes(mnist: Dataset, method: str) -> None:
    """That is the second round, or the first where prototypes are agreed on beforehand."""
    experiment = tiny(method={"name": method})
    _, ((first,), (second,)) = run([experiment], mnist, 2)
    kind = METHODS[method]
    agreed = targets(experiment, 0, Globals.none(10, 50)).present_J.all()
    first_loss = first.record.loss_prototype
    second_loss = second.record.loss_prototype
    pulled = kind.predicts or kind.own_means
    assert (first_loss is not None) == (second_loss is not None) == pulled
    assert ((first_loss or 0) > 0) == agreed
    assert ((second_loss or 0) > 0) == pulled
    assert (first.record.loss > first.record.loss_classification) == (agreed or method == "fedprox")
    assert (second.record.loss > second.record.loss_classification > 0) == (
        pulled or method == "fedprox"
    )
    assert (first.record.round, second.record.round) == (1, 2)
    assert 0 < second.record.seconds_train <= second.record.seconds


def test_epochs_count_as_samples(mnist: Dataset) -> None:
    _, ((one,),) = run([tiny()], mnist, 1)
    _, ((two,),) = run([tiny(train={"epochs": 2})], mnist, 1)
    assert two.record.samples == 2 * one.record.samples


@pytest.mark.parametrize("method", METHODS)
def test_it_learns(mnist: Dataset, method: str) -> None:
    """Five rounds of 60 shots per class: far above the third or the tenth that guessing gives."""
    experiment = from_table({"clients": 8, "method": {"name": method}, "partition": {"shots": 60}})
    _, rows = run([experiment], mnist, 5)
    found = [row.record for (row,) in rows]
    assert found[-1].accuracy_mean > (50 if METHODS[method]().shared(head=True) else 87)
    assert found[-1].accuracy_mean > found[0].accuracy_mean
    assert found[-1].loss_classification < found[0].loss_classification / 2
    assert found[-1].collapsed_clients == 0
    if METHODS[method].predicts:
        assert (found[-1].prototype_accuracy_own_mean or 0) > 80


def test_silhouettes_are_of_the_pooled_and_of_the_unpooled(mnist: Dataset) -> None:
    loop = RoundLoop([tiny()], mnist, CPU)
    state = loop.start()
    for _ in range(2):
        state, _ = loop.advance(state)
    parts = [stock_features(loop, state, client, train=False) for client in range(6)]
    c = torch.cat([part[0] for part in parts])
    y = torch.cat([part[2] for part in parts])
    ((pooled, unpooled),) = loop.silhouettes(state)
    assert unpooled == pytest.approx(metrics.silhouette(c, y, 0), abs=1e-4)
    assert pooled == pytest.approx(metrics.silhouette(reference.softpool(c), y, 0), abs=1e-4)
    assert pooled != pytest.approx(unpooled, abs=1e-3)


# Who takes part


def test_half_of_the_clients_train_and_send(mnist: Dataset, sent: list[Uploads]) -> None:
    experiment = tiny(participation=0.5)
    loop = RoundLoop([experiment], mnist, CPU)
    state = loop.start()
    for round_ in (1, 2, 3):
        who = participants(experiment, round_)
        assert len(who) == 3
        assert who == sorted(set(who))
        after, (outcome,) = loop.advance(state)
        others = [k for k in range(6) if k not in who]
        for name, p in after.params[0].items():
            assert torch.equal(p[others], state.params[0][name][others])
            assert all(not torch.equal(p[k], state.params[0][name][k]) for k in who)
        assert sent[-1].clients == tuple(who)
        for row, k in zip(sent[-1].counts_KJ, who, strict=True):
            assert np.flatnonzero(row).tolist() == loop.partitions[0].classes[k].tolist()
        assert outcome.record.participants == 3
        assert outcome.record.samples == sum(len(loop.partitions[0].train[k]) for k in who)
        assert [row["trained"] for row in outcome.clients] == [int(k in who) for k in range(6)]
        assert [
            k for k, row in enumerate(outcome.clients) if row["loss_classification"] is None
        ] == others
        held = [row["loss_classification"] for row in outcome.clients if row["trained"]]
        assert outcome.record.loss_classification == pytest.approx(np.mean(held))
        state = after


def test_everyone_takes_part_now_and_then() -> None:
    experiment = tiny(participation=0.5)
    seen = [tuple(participants(experiment, round_)) for round_ in range(1, 201)]
    assert len(set(seen)) == 20  # of 6 choose 3
    times = np.bincount(np.concatenate(seen), minlength=6)
    assert times.min() > 75
    assert times.max() < 125
    assert participants(tiny(participation=0.01), 1) != []
    assert participants(tiny(), 1) == list(range(6))
    assert any(
        participants(tiny(participation=0.5, seed=1), r) != list(seen[r - 1]) for r in (1, 2, 3)
    )


# Cohorts


def test_clients_of_different_models_exchange_prototypes(
    mnist: Dataset, sent: list[Uploads]
) -> None:
    cohorts = [
        {"clients": 2, "channels": 18},
        {"clients": 1, "channels": 20},
        {"clients": 3, "channels": 22},
    ]
    experiment = tiny(cohorts=cohorts)
    state, rows = run([experiment], mnist, 2)
    assert [p["conv2.weight"].shape[:2] for p in state.params] == [(2, 18), (1, 20), (3, 22)]
    assert sent[0].clients == tuple(range(6))
    held = {j for classes in deal(experiment, mnist).classes for j in classes.tolist()}
    assert set(np.flatnonzero(state.globals_[0].present_J).tolist()) == held
    assert all(row["loss_prototype"] > 0 for row in rows[1][0].clients)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_cohorts_of_one_model_are_no_cohorts(mnist: Dataset, participation: float) -> None:
    """Two runs stacked, too: rows of runs, cohorts and clients must all meet."""
    plain = [tiny(seed=s, participation=participation) for s in (0, 1)]
    split = [
        tiny(seed=s, participation=participation, cohorts=[{"clients": n} for n in (2, 1, 3)])
        for s in (0, 1)
    ]
    (expected, rows) = run(plain, mnist, 2)
    (found, parts) = run(split, mnist, 2)
    for r in (0, 1):
        whole = rows_of(expected.params[0], slice(6 * r, 6 * r + 6))
        pieces = [
            rows_of(p, slice(n * r, n * r + n))
            for p, n in zip(found.params, (2, 1, 3), strict=True)
        ]
        joined = {name: torch.cat([piece[name] for piece in pieces]) for name in whole}
        torch.testing.assert_close(joined, whole, rtol=1e-3, atol=1e-4)
        for one, other in zip(rows, parts, strict=True):
            a = timeless(one[r])
            b = timeless(other[r])
            assert a["bytes_up"] == b["bytes_up"]
            assert a["loss_prototype"] == pytest.approx(b["loss_prototype"], rel=1e-3)
            near = [[row["accuracy"] for row in record["clients"]] for record in (a, b)]
            assert near[0] == pytest.approx(
                near[1], abs=11
            )  # one sample of ten may fall the other way


# Groups


def grouped(mnist: Dataset, with_test: list[int]) -> Dataset:
    """Make eight writers; only `with_test` have test images, labelled with the next digit."""
    pick = np.random.default_rng(0).permutation(len(mnist.train_y))[:480]
    writers = np.arange(480) % 8
    if with_test:
        there = np.isin(writers, with_test)
    else:
        there = np.ones(480, np.bool_)
    return replace(
        mnist,
        name="letters",
        train_x=mnist.train_x[pick],
        train_y=mnist.train_y[pick],
        test_x=mnist.train_x[pick][there],
        test_y=(mnist.train_y[pick][there] + 1) % 10,
        train_groups=writers,
        test_groups=writers[there] if with_test else writers + 100,
    )


def by_writers(seed: int = 0) -> Experiment:
    return from_table(
        {
            "clients": 3,
            "seed": seed,
            "partition": {"name": "groups"},
            "train": {"lr": 0.03, "epochs": 8},
        }
    )


@pytest.mark.parametrize(("with_test", "held_out"), [([], True), (list(range(8)), False)])
def test_writers_without_test_samples_hold_some_back(
    mnist: Dataset, with_test: list[int], held_out: bool
) -> None:
    """They are mostly right on their own images, and hardly ever on the mislabelled test images."""
    dataset = grouped(mnist, with_test)
    experiment = by_writers()
    loop = RoundLoop([experiment], dataset, CPU)
    assert loop.partitions[0].held_out == held_out
    _, (outcome,) = loop.advance(loop.start())
    found = outcome.record.accuracy_mean
    assert found > 40 if held_out else found < 20


def test_seeds_that_test_on_different_arrays_are_each_as_alone(mnist: Dataset) -> None:
    """Some writers have no test samples: the seed decides whether a run holds samples back."""
    dataset = grouped(mnist, [0, 1, 2, 3, 4, 5])
    by_kind: dict[bool, Experiment] = {}
    for seed in range(40):
        by_kind.setdefault(deal(by_writers(seed), dataset).held_out, by_writers(seed))
    for pair in ([by_kind[False], by_kind[True]], [by_kind[True], by_kind[False]]):
        _, (stacked,) = run(pair, dataset, 1)
        for experiment, outcome in zip(pair, stacked, strict=True):
            _, ((alone,),) = run([experiment], dataset, 1)
            assert outcome.record.accuracy_mean == pytest.approx(alone.record.accuracy_mean, abs=4)


def test_test_images_are_the_partitions(mnist: Dataset) -> None:
    loop = RoundLoop([tiny()], mnist, CPU)
    tests = loop.engines[0].tests
    partition = loop.partitions[0]
    for k in range(6):
        index = tests.index_KN[k, : tests.counts[k]]
        assert torch.equal(tests.y[index], torch.from_numpy(mnist.test_y[partition.test[k]]))
        expected = (
            torch.from_numpy(mnist.test_x[partition.test[k]]).float() / 255 - 0.1307
        ) / 0.3081
        torch.testing.assert_close(tests.x[index], expected)
    assert tests.black_C is None


# What goes wrong


def test_divergence_names_the_client_and_the_round(mnist: Dataset) -> None:
    with pytest.raises(
        Diverged, match=r"client \d is not a number in round 1 \(seed 5, \d of 6 clients\)"
    ) as caught:
        run([tiny(seed=5, train={"lr": 1e6})], mnist, 3)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_divergence_names_the_one_client_it_is(mnist: Dataset) -> None:
    loop = RoundLoop([tiny()], mnist, CPU)
    state, _ = loop.advance(loop.start())
    state.params[0]["fc2.bias"][3] = torch.nan
    with pytest.raises(
        Diverged, match=r"client 3 is not a number in round 2 \(seed 0, 1 of 6 clients\)"
    ):
        loop.advance(state)


def test_divergence_says_of_each_run_of_a_stack_what_it_is(mnist: Dataset) -> None:
    loop = RoundLoop([tiny(seed=seed) for seed in (3, 4, 5)], mnist, CPU)
    state = loop.start()
    state.params[0]["fc2.bias"][[6 + 2, 12 + 1]] = torch.nan
    with pytest.raises(Diverged) as caught:
        loop.advance(state)
    assert list(caught.value.runs) == [1, 2]
    assert "client 2 " in caught.value.runs[1]
    assert "seed 4" in caught.value.runs[1]
    assert "client 1 " in caught.value.runs[2]
    assert "seed 5" in caught.value.runs[2]


def test_dead_features_are_counted(mnist: Dataset) -> None:
    loop = RoundLoop([tiny()], mnist, CPU)
    state = loop.start()
    state.params[0]["fc1.bias"][[1, 4]] = -1e3
    _, (outcome,) = loop.advance(state)
    assert outcome.record.collapsed_clients == 2
    _, (alive,) = loop.advance(loop.start())
    assert alive.record.collapsed_clients == 0


def test_a_client_none_of_whose_classes_was_sent_is_not_right_by_prototype(mnist: Dataset) -> None:
    """One client sends; another holds class 0 and none of the sender's: it has no prototypes."""

    def strangers(seed: int) -> list[int]:
        classes = deal(tiny(participation=0.01, seed=seed), mnist).classes
        (sender,) = participants(tiny(participation=0.01, seed=seed), 1)
        return [
            k
            for k, held in enumerate(classes)
            if 0 in held and not set(held) & set(classes[sender])
        ]

    seed = next(seed for seed in range(100) if strangers(seed))
    _, ((outcome,),) = run([tiny(participation=0.01, seed=seed)], mnist, 1)
    assert all(outcome.clients[k]["prototype_accuracy_own"] == 0 for k in strangers(seed))


def test_augmentation_reaches_training_alone(mnist: Dataset) -> None:
    plain, augmented = (RoundLoop([tiny(data={"augment": a})], mnist, CPU) for a in (False, True))
    black = (0 - mnist.mean[0]) / mnist.std[0]
    found = augmented.engines[0].shares.black_C
    assert found is not None
    assert found.tolist() == pytest.approx([black])
    assert augmented.engines[0].tests.black_C is None
    one, two = (f.advance(f.start())[0] for f in (plain, augmented))
    assert not equal(one.params, two.params)


def test_what_is_sent_down_is_the_canonical_message(mnist: Dataset) -> None:
    state, ((outcome,),) = run([tiny()], mnist, 1)
    message = encode(
        1, 0, state.globals_[0].present_J.astype(np.int64), state.globals_[0].values_JV
    )
    assert outcome.record.bytes_down == 6 * len(message)
