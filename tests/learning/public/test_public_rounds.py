"""Rounds with a public map: who sends statistics, when, what they cost, and what they teach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.experiment import Experiment
from fedrfq.federation import codec
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.public.exchange import PublicExchange
from fedrfq.learning.public.features import vectors
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.attacks import ATTACKS, Scene
from fedrfq.robust.attacks.attack import replaced
from fedrfq.robust.attacks.sign_flip import SignFlip
from support.small import CPU, run, tiny

MAP: dict[str, Any] = {"name": "random", "first": 8, "second": 4}
LOCAL: dict[str, Any] = {"name": "local"}


def mapped(**changes: Any) -> Experiment:
    """Return an experiment with a small map, whose clients train alone if not said otherwise."""
    return tiny(**{"public": MAP, "method": LOCAL, "checkpoint": 1, **changes})


def decided(state: LoopState, r: int = 0) -> Globals:
    """Return a run's certified statistics."""
    known = state.public[r]
    assert known is not None
    return known


def written(known: Globals) -> bytes:
    return codec.encode_globals(known)


def records(rows: list[Any], r: int = 0) -> list[RoundRecord]:
    return [outcomes[r].record for outcomes in rows]


def test_one_exchange_teaches_classes_that_a_client_never_saw(mnist: Dataset) -> None:
    _, rows = run([mapped()], mnist, 2)
    _, alone = run([tiny(method=LOCAL, checkpoint=1)], mnist, 2)
    (first, second), (_, local) = records(rows), records(alone)
    assert (first.accuracy_unheld or 0) > 50
    assert (second.public_accuracy_all or 0) > 50
    assert (local.accuracy_unheld or 0) < 5
    assert local.public_accuracy_all is None
    # What a client does with its own classes is as it was.
    assert second.accuracy_mean == local.accuracy_mean
    assert second.head_accuracy_held == local.head_accuracy_held


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"public": {**MAP, "moments": "full", "bits": 16, "projection": 12}},
        {
            "attack": {"name": "swap", "clients": 2},
            "detector": {"name": "adaptive"},
            "method": {"name": "fedproto"},
        },
    ],
    ids=["means", "moments", "attack"],
)
def test_every_committee_certifies_the_statistics_of_one_trusted_server(
    setting: dict[str, Any], mnist: Dataset
) -> None:
    committees: list[dict[str, Any]] = [
        {"name": "direct"},
        {"name": "simulated"},
        {"name": "simulated", "faulty": 1, "behaviour": "lie"},
    ]
    experiments = [mapped(**setting, committee=committee) for committee in committees]
    state, rows = run(experiments, mnist, 2)
    assert len({written(decided(state, r)) for r in range(3)}) == 1
    for outcomes in rows:
        assert len({outcome.record.accuracy_all for outcome in outcomes}) == 1
        assert len({outcome.record.bytes_up for outcome in outcomes[1:]}) == 1


def test_in_an_exchange_of_statistics_everybody_takes_part(mnist: Dataset) -> None:
    state, rows = run([mapped(participation=0.5)], mnist, 2)
    whole, _ = run([mapped()], mnist, 1)
    assert [record.participants for record in records(rows)] == [6, 3]
    assert written(decided(state)) == written(decided(whole))


def test_statistics_are_sent_once(mnist: Dataset) -> None:
    _, rows = run([mapped()], mnist, 3)
    up = [record.bytes_up for record in records(rows)]
    down = [record.bytes_down for record in records(rows)]
    held = sum(row["classes"] for row in rows[0][0].clients)
    # 64 values of 8 bits, and as much besides as in every upload.
    assert up == [6 * 18 + held * (6 + 64), 0, 0]
    assert down[0] > 0
    assert down[1:] == [0, 0]


def test_or_again_after_some_rounds_with_prototypes_between(mnist: Dataset) -> None:
    experiment = mapped(method={"name": "fedproto"}, public={**MAP, "every": 2})
    loop = RoundLoop([experiment], mnist, CPU)
    state = loop.start()
    sizes = []
    states = []
    for _ in range(4):
        state, (outcome,) = loop.advance(state)
        sizes.append(outcome.sent.values_KJV.shape[2])
        states.append(state)
    # The map has 64 values and a prototype 50.
    assert sizes == [64, 50, 64, 50]
    assert not states[0].globals_[0].present_J.any()
    assert states[1].globals_[0].present_J.any()
    assert written(states[2].globals_[0]) == written(states[1].globals_[0])
    # Samples do not change, so neither do their statistics.
    assert len({written(decided(one)) for one in states}) == 1


def test_models_and_statistics_are_both_counted(mnist: Dataset) -> None:
    _, averaged = run([tiny(method={"name": "fedavg"})], mnist, 2)
    _, statistics = run([mapped()], mnist, 2)
    _, both = run([mapped(method={"name": "fedavg"})], mnist, 2)
    parts = zip(records(averaged), records(statistics), records(both), strict=True)
    for model, sent, found in parts:
        assert found.bytes_up == model.bytes_up + sent.bytes_up
        assert found.bytes_down == model.bytes_down + sent.bytes_down
        assert found.parameters_up == model.parameters_up + sent.parameters_up
        assert found.parameters_down == model.parameters_down + sent.parameters_down
        assert model.bytes_up > sent.bytes_up


@pytest.mark.parametrize("shots", [1, 2])
def test_one_sample_of_a_class_is_enough(mnist: Dataset, shots: int) -> None:
    _, rows = run([mapped(partition={"shots": shots})], mnist, 1)
    (record,) = records(rows)
    assert (record.accuracy_all or 0) > 20
    assert (record.public_ece or 0) < 100


def test_a_class_that_nobody_holds_is_never_an_answer(mnist: Dataset) -> None:
    experiment = mapped(clients=2, partition={"ways": 3, "spread": 0})
    loop = RoundLoop([experiment], mnist, CPU)
    state, (outcome,) = loop.advance(loop.start())
    present_J = decided(state).present_J
    held_J = loop.held_of(0).any(0).numpy()
    assert np.array_equal(present_J, held_J)
    assert not held_J.all()
    some = np.arange(0, len(mnist.test_y), 7)
    z_NV = vectors(experiment.public, mnist, "test", some, CPU)
    for made in loop.public.exchanges[0].classifiers(decided(state)):
        assert held_J[made.log_probabilities(z_NV).argmax(1).numpy()].all()
    recall = outcome.record.recall
    assert recall is not None
    assert [recall[j] for j in np.flatnonzero(~held_J)] == [0] * int((~held_J).sum())


def test_stacked_runs_are_each_as_alone(mnist: Dataset) -> None:
    """Maps and the rounds of the exchange may differ, too."""
    experiments = [
        mapped(),
        mapped(seed=1, public={**MAP, "every": 1}),
        mapped(seed=1, public={**MAP, "second": 2, "classifier": "nearest"}),
    ]
    both, rows = run(experiments, mnist, 2)
    for r, experiment in enumerate(experiments):
        alone, own = run([experiment], mnist, 2)
        assert written(decided(both, r)) == written(decided(alone))
        for found, expected in zip(records(rows, r), records(own), strict=True):
            assert found.bytes_up == expected.bytes_up
            assert found.public_accuracy_all == pytest.approx(expected.public_accuracy_all)
            assert found.accuracy_all == pytest.approx(expected.accuracy_all, abs=1.5)


def test_a_server_that_trains_leaves_statistics_alone(mnist: Dataset) -> None:
    loop = RoundLoop([mapped(method={"name": "fedtgp", "server_epochs": 2})], mnist, CPU)
    start = loop.start()
    first, _ = loop.advance(start)
    assert all(torch.equal(start.server[0][name], p) for name, p in first.server[0].items())
    second, _ = loop.advance(first)
    assert second.globals_[0].present_J.any()


def test_statistics_are_of_the_labels_that_a_client_believes_in(mnist: Dataset) -> None:
    honest, _ = run([mapped()], mnist, 1)
    poisoned, _ = run([mapped(attack={"name": "label-flip", "clients": 2})], mnist, 1)
    assert written(decided(honest)) != written(decided(poisoned))


def test_means_that_no_sample_can_have_are_refused(mnist: Dataset) -> None:
    """A mean beyond the norm of every vector is a lie: that client's upload does not count."""
    attack = {"name": "scale", "clients": 2, "strength": 5.0}
    state, rows = run([mapped(attack=attack, committee={"name": "simulated"})], mnist, 1)
    (record,) = records(rows)
    assert len(record.refused) == record.attackers_filtered == 2
    assert all("norm" in reason for reason in record.refused.values())
    assert np.abs(decided(state).floats()).max() < 8


def test_the_next_committee_round_does_not_need_statistics(mnist: Dataset) -> None:
    """Servers that agree go on hearing from clients that train alone."""
    state, rows = run([mapped(committee={"name": "simulated"})], mnist, 3)
    assert [record.view for record in records(rows)] == [0, 0, 0]
    assert [outcomes[0].sent.parameters() for outcomes in rows][1:] == [0, 0]
    assert decided(state).present_J.any()


def test_every_attack_meets_statistics(mnist: Dataset) -> None:
    """All in one stack; in the second exchange attackers know what came of the first."""
    public = {**MAP, "projection": 12, "moments": "full", "bits": 16, "every": 1}
    setting: dict[str, Any] = {"public": public, "detector": {"name": "adaptive"}}
    attacks = [{"name": name, "clients": 2} for name in ATTACKS]
    state, rows = run([mapped(**setting, attack=attack) for attack in attacks], mnist, 2)
    honest = decided(state, list(ATTACKS).index("none"))
    for r, kind in enumerate(ATTACKS.values()):
        assert decided(state, r).values_JV.shape == honest.values_JV.shape
        assert (records(rows, r)[1].public_accuracy_all or 0) > 20
        assert records(rows, r)[1].attackers == 2 * kind.harms
    # An attacker is not so careless as to be refused for the samples it claims.
    refused = [why for r in range(len(ATTACKS)) for why in records(rows, r)[1].refused.values()]
    assert not [why for why in refused if "samples" in why]


def test_attackers_know_the_statistics_and_that_the_detector_starts_afresh(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes: list[Scene] = []

    def spy(attack: SignFlip, scene: Scene, rng: np.random.Generator) -> Uploads:
        scenes.append(scene)
        if scene.round == 2:
            return replaced(scene, 9 * scene.theirs.values_KJV)
        return scene.uploads

    monkeypatch.setattr(SignFlip, "forge", spy)
    experiment = mapped(
        method={"name": "fedproto"},
        public={**MAP, "every": 2},
        detector={"name": "adaptive", "malicious": 1},
        attack={"name": "sign-flip", "clients": 1},
        partition={"ways": 6},
    )
    state, _ = run([experiment], mnist, 3)
    known = [scene.globals_ for scene in scenes]
    assert [one.values_JV.shape for one in known] == [(10, 64), (10, 50), (10, 64)]
    assert not known[0].present_J.any()
    assert written(known[2]) == written(decided(state))
    fresh = codec.encode_state(experiment.detector.start(6))
    assert [codec.encode_state(scene.state) for scene in scenes] == [fresh] * 3
    assert codec.encode_state(state.memory[0]) != fresh


def test_clients_take_noise_out_exactly_where_the_experiment_adds_some(mnist: Dataset) -> None:
    noisy = mapped(privacy={"noise": 2.0}, detector={"name": "none"})
    state, _ = run([mapped(), noisy], mnist, 1)
    loop = RoundLoop([mapped(), noisy], mnist, CPU)
    plain, denoising = loop.public.exchanges
    known = decided(state, 1)
    taken = classifier_weights(plain, known)
    assert torch.equal(taken, classifier_weights(replace(denoising, noisy=False, _made={}), known))
    assert not torch.allclose(taken, classifier_weights(denoising, known))


def classifier_weights(exchange: PublicExchange, known: Globals) -> torch.Tensor:
    return exchange.classifiers(known)[0].weight_VJ
