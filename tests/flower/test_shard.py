"""Clients on nodes match those of `fedrfq run`: to the byte if alone, closely in stacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedrfq.data import Dataset
from fedrfq.engine.threads import threads
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.flower import shard
from fedrfq.flower.messages import NodeAnswer
from fedrfq.flower.shard import Shard, ShardData, joined
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import CommonFigures
from fedrfq.learning.draws import deal
from fedrfq.learning.public_stack import PublicStack
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.prototypes.fixed_point import Globals
from support.flowered import NOTHING, Done, experiment, node_of, order, rounds, same, sent_to
from support.small import CPU

CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "some take part": {"participation": 0.5},
    "augmented, lean": {"data": {"augment": True}, "method": {"name": "fedrfq-lean"}},
    "fedproto, held back": {"method": {"name": "fedproto"}, "validation": 0.3, "init": "same"},
    "cohorts": {
        "cohorts": [{"clients": 4, "hidden": 40}, {"clients": 2, "channels": 12, "hidden": 40}]
    },
    "labels poisoned": {"attack": {"name": "label-flip", "clients": 2}},
    "nothing exchanged": NOTHING,
}


def result_of(run: list[Done], number: int) -> bytes:
    """Return the result of a round; empty before the first."""
    if number:
        return run[number - 1].last
    return b""


def play(e: Experiment, run: list[Done], nodes: int, state: Path) -> list[list[NodeAnswer]]:
    """Return all nodes' answers, round by round, the last without training."""
    answers = []
    for number in range(len(run) + 1):
        sent = order(e, number, result_of(run, number), number < len(run), state)
        answers.append([sent_to(place, nodes, sent) for place in range(nodes)])
        assert not [answer.error for answer in answers[-1] if answer.error]
    return answers


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_alone_all_bytes_are_those_of_a_run_however_clients_are_divided(
    changes: dict[str, Any], mnist: Dataset, tmp_path: Path
) -> None:
    e = experiment(**changes)
    run = rounds(e, mnist, 2 if changes else 3)
    for nodes in (1, 4) if changes else (1, 2, 4, 6):
        heard = play(e, run, nodes, tmp_path / str(nodes))
        for number, done in enumerate(run, 1):
            trained = heard[number - 1]
            tested = heard[number]
            assert tuple(upload for answer in trained for upload in answer.uploads) == done.uploads
            check_losses(trained, done)
            check_figures(tested, done)
        for place in range(nodes):
            check_models(e, run, place, nodes, tmp_path / str(nodes))


def check_losses(answers: list[NodeAnswer], done: Done) -> None:
    rows = {
        client: losses
        for answer in answers
        for client, losses in zip(answer.trained, answer.losses, strict=True)
    }
    assert list(rows) == [row["client"] for row in done.outcome.clients if row["trained"]]
    for client, (_, classification, prototype) in rows.items():
        row = done.outcome.clients[client]
        assert classification == row["loss_classification"]
        assert row["loss_prototype"] in (None, prototype)
    assert np.mean([total for total, _, _ in rows.values()]) == pytest.approx(
        done.outcome.record.loss, rel=1e-6
    )


def check_figures(answers: list[NodeAnswer], done: Done) -> None:
    found = joined([answer.figures for answer in answers if answer.figures])
    record = done.outcome.record
    rows = done.outcome.clients
    assert found.head_K.tolist() == [row["accuracy"] for row in rows]
    assert int(found.collapsed_K.sum()) == record.collapsed_clients
    assert int(found.saturated_K.sum()) == record.saturated
    if record.prototype_failure is None:
        assert np.isnan(found.prototype_K).all()
        assert found.distance_NJ.shape[1] == 0
        return
    assert found.prototype_K.tolist() == [row["prototype_accuracy"] for row in rows]
    assert found.prototype_own_K.tolist() == [row["prototype_accuracy_own"] for row in rows]
    distance_1NJ = torch.from_numpy(found.distance_NJ)[None]
    y_1N = torch.from_numpy(found.y_N)[None]
    present_1J = torch.from_numpy(done.state.globals_[0].present_J)[None]
    failure = metrics.prototype_failure(
        distance_1NJ, y_1N, torch.ones_like(y_1N).bool(), present_1J
    )
    assert failure[0] == record.prototype_failure


def check_models(e: Experiment, run: list[Done], place: int, nodes: int, state: Path) -> None:
    node = node_of(place, nodes, order(e, 0, b"", True, state))
    saved = node.state.read()
    for i, (client,) in enumerate(node.shard.programs):
        assert same(node.models(saved, i), run[-1].state.params[client])


def test_values_that_were_cut_are_counted(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment(clients=2)
    run = rounds(e, mnist, 1)
    nothing = Globals.none(10, e.prototype_size())
    node = node_of(0, 1, order(e, 0, b"", True, tmp_path))
    quantise = shard.quantise

    def cutting(*arguments: Any) -> tuple[Any, ...]:
        values, cut, missing = quantise(*arguments)
        return values, cut + 5, missing

    with monkeypatch.context() as patch:
        patch.setattr(shard, "quantise", cutting)
        assert node.shard.train((1,), node.shard.start((1,)), 1, nothing).clipped == {1: 5}
        node.answer(order(e, 0, b"", True, tmp_path))
    figures = node.answer(order(e, 1, run[0].last, False, tmp_path)).figures
    assert figures is not None
    assert figures.saturated_K.tolist() == [5, 5]


PUBLIC = {"method": {"name": "local"}, "public": {"name": "random", "second": 2}}


def test_where_no_statistics_were_certified_the_head_alone_speaks(
    mnist: Dataset, tmp_path: Path
) -> None:
    e = experiment(clients=2, **PUBLIC)
    own = node_of(0, 1, order(e, 0, b"", True, tmp_path)).shard
    nothing = Globals.none(10, e.prototype_size())
    known = own.classifiers(e.rounds, None)
    assert len(known) == 2
    figures = own.test((1,), own.start((1,)), nothing, e.rounds, known)
    ways = CommonFigures.unpacked(figures.common_KF).ways
    # Nothing is known of any class, so none of those that it does not hold is ever right.
    assert ways["combined"].accuracy_unheld_K.tolist() == [0.0]
    assert ways["combined"].accuracy_held_K[0] >= ways["head"].accuracy_held_K[0]
    # In other rounds nobody is tested on all classes.
    assert own.classifiers(1, None) == []


def test_clients_with_data_of_their_own_send_statistics_and_are_not_tested_on_all_classes(
    mnist: Dataset, tmp_path: Path
) -> None:
    e = experiment(clients=2, **PUBLIC)
    dealt = node_of(0, 2, order(e, 0, b"", True, tmp_path)).shard
    nothing = Globals.none(10, e.prototype_size())
    local = LocalDataset(mnist, deal(e, mnist).only([0]))
    own = Shard(e, (0,), ShardData.own(local), CPU)
    start = own.start((0,))
    expected = dealt.train((0,), start, 1, nothing).contents
    assert own.train((0,), start, 1, nothing).contents == expected
    known = own.classifiers(e.rounds, None)
    assert own.test((0,), start, nothing, e.rounds, known).common_KF.shape == (1, 0)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_clients_take_noise_out_exactly_where_the_experiment_adds_some(
    noise: float, mnist: Dataset, tmp_path: Path
) -> None:
    e = experiment(clients=2, **PUBLIC, privacy={"noise": noise}, detector={"name": "none"})
    own = node_of(0, 1, order(e, 0, b"", True, tmp_path)).shard
    exchange = PublicStack([e], [deal(e, mnist)], [[]], mnist, CPU).exchanges[0]
    sent = exchange.uploads([0])
    known = Globals(sent.counts_KJ[0] > 0, sent.values_KJV[0])
    made = own.classifiers(e.rounds, known)[0]
    assert torch.equal(made.weight_VJ, exchange.classifiers(known)[0].weight_VJ)


def test_in_stacks_results_are_close(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment(alone=False)
    run = rounds(e, mnist, 1)
    monkeypatch.setitem(shard._MAX_CLIENTS, "cpu", 2)
    for nodes, programs in ((1, [(0, 1), (2, 3), (4, 5)]), (2, [(0, 1), (2,)])):
        state = tmp_path / str(nodes)
        play(e, run, nodes, state)
        node = node_of(0, nodes, order(e, 0, b"", True, state))
        assert node.shard.programs == programs
        saved = node.state.read()
        for i, clients in enumerate(programs):
            for name, p in node.models(saved, i).items():
                assert torch.allclose(p, run[0].state.params[0][name][list(clients)], atol=1e-5)


@pytest.mark.parametrize(("alone", "cores"), [(False, 3), (True, 1)])
def test_its_engines_have_all_cores_and_all_else_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool, cores: int
) -> None:
    e = experiment(alone=alone, public={"name": "random", "first": 8, "second": 4}, checkpoint=1)
    made: list[int] = []
    used: list[int] = []

    class Engine(shard.Engine):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self._cores)

        def features(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            used.append(torch.get_num_threads())
            return super().features(*given)

    monkeypatch.setattr(shard, "Engine", Engine)
    with threads(3):
        own = node_of(0, 1, order(e, 0, b"", True, tmp_path)).shard
        clients = own.programs[0]
        nothing = Globals.none(10, e.prototype_size())
        own.train(clients, own.start(clients), 1, nothing)
        own.test(clients, own.start(clients), nothing, 1)
    assert set(made) == {cores}
    assert set(used) == {1}


def test_programs_are_as_large_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment(alone=False, cohorts=[{"clients": 4}, {"clients": 2, "channels": 12}])
    size = sum(
        4 * p.numel()
        for p in node_of(0, 1, order(e, 0, b"", True, tmp_path)).shard.start((0,)).values()
    )
    for most, programs in ((3 * size, [(0, 1), (2, 3), (4, 5)]), (1, [(k,) for k in range(6)])):
        monkeypatch.setitem(shard._MAX_BYTES, "cpu", most)
        found = node_of(0, 1, order(e, 0, b"", True, tmp_path / str(most)))
        assert found.shard.programs == programs


def test_training_that_fails_is_said_of_whom(mnist: Dataset, tmp_path: Path) -> None:
    e = experiment(clients=2)
    e = replace(e, train=replace(e.train, lr=1e30))
    node = node_of(0, 1, order(e, 0, b"", True, tmp_path))
    with pytest.raises(
        UserError, match=r"the loss of client 0 is not a number in round 1: lower train\.lr"
    ):
        node.answer(order(e, 0, b"", True, tmp_path))
    assert node.state.read().answer is None
