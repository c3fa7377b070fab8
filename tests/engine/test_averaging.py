"""Methods that exchange parameters: the server against plain loops, exact limits, and traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.client_data import ClientData
from fedrfq.engine import averaging
from fedrfq.engine.engine import Engine
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.learning.round_loop import RoundLoop, participants
from fedrfq.methods import METHODS, Method
from fedrfq.methods.fedavg import FedAvg
from fedrfq.methods.fedper import FedPer
from fedrfq.methods.fedrep import FedRep
from fedrfq.methods.fesem import FeSEM, farthest
from fedrfq.models.mlp import MLP
from fedrfq.models.stacked import Params, stack
from fedrfq.prototypes.pooling import Pool
from support import reference
from support.small import CPU, equal, rows_of, run, timeless, tiny

SHARING = [name for name, kind in METHODS.items() if kind().centres]
HEADS = ("fc3.weight", "fc3.bias")
MODEL = MLP(width=3, hidden=4)
QUICK = {"model": {"name": "mlp", "width": 20}}


def random_params(clients: int, seed: int = 0) -> Params:
    """Of as many small perceptrons."""
    generator = torch.Generator().manual_seed(seed)
    return stack([MODEL.start((1, 2, 2), 3, generator) for _ in range(clients)])


def plain_mean(rows: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """Number by number, in Python's own arithmetic."""
    sums = [0.0] * len(rows[0])
    for row, weight in zip(rows, weights, strict=True):
        for i, value in enumerate(row):
            sums[i] += weight * value
    return [total / sum(weights) for total in sums]


def numbers(p: Tensor) -> list[list[float]]:
    flat: list[list[float]] = p.flatten(1).tolist()
    return flat


def only(params: Params, names: Sequence[str]) -> Params:
    return {name: p for name, p in params.items() if name in names}


# The exchange, by plain loops

WEIGHTS = [[3, 0, 5, 20], [7, 1, 1, 0]]  # two runs of four clients


@pytest.mark.parametrize("method", [FedAvg(), FedPer(), FedRep()], ids=str)
def test_the_average_is_the_plain_loops_by_samples(method: Method) -> None:
    """Absent clients weigh nothing but get the average; a personal decision layer never moves."""
    params = random_params(8)
    centres, _ = averaging.same_start(method, MODEL, random_params(8, 1), 2)
    if isinstance(method, FedPer):
        own = HEADS
    else:
        own = ()
    after, received = averaging.exchange(
        method, MODEL, centres, params, torch.tensor(WEIGHTS), first=False
    )
    assert set(after) == set(params) - set(own)
    assert list(received) == list(params)
    for name, p in params.items():
        if name in own:
            assert torch.equal(received[name], p)
            continue
        for r, weights in enumerate(WEIGHTS):
            expected = plain_mean(numbers(p[4 * r : 4 * r + 4]), weights)
            assert numbers(after[name][r : r + 1])[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)
            for k in range(4):
                assert torch.equal(received[name][4 * r + k], after[name][r])
    assert all(p.dtype == torch.float32 for p in [*after.values(), *received.values()])


def test_sums_are_in_double_precision() -> None:
    """In single precision the middle one would be lost beside the others."""
    params = {name: torch.zeros_like(p) for name, p in random_params(3).items()}
    params["fc1.bias"][:, 0] = torch.tensor([1e8, 1.0, -1e8])
    after, _ = averaging.exchange(
        FedAvg(), MODEL, random_params(1), params, torch.tensor([[1, 1, 1]]), first=False
    )
    assert after["fc1.bias"][0, 0].item() == pytest.approx(1 / 3)


def test_the_exchange_leaves_what_it_was_given() -> None:
    params = random_params(4)
    centres = random_params(3, 1)
    before = [p.clone() for p in [*params.values(), *centres.values()]]
    averaging.exchange(FeSEM(), MODEL, centres, params, torch.tensor([[1, 2, 0, 4]]), first=False)
    assert all(
        torch.equal(p, q)
        for p, q in zip([*params.values(), *centres.values()], before, strict=True)
    )


def test_everyone_starts_from_the_first_client_of_the_run() -> None:
    params = random_params(8)
    for method, centres in ((FedAvg(), 1), (FeSEM(clusters=2), 2)):
        found, own = averaging.same_start(method, MODEL, params, 2)
        for name, p in params.items():
            assert torch.equal(
                own[name], torch.cat([p[[0]].expand_as(p[:4]), p[[4]].expand_as(p[4:])])
            )
            assert torch.equal(found[name], p[[0] * centres + [4] * centres])
    _, own = averaging.same_start(FedPer(), MODEL, params, 2)
    assert all(torch.equal(own[name], params[name]) for name in HEADS)
    assert not torch.equal(own["fc1.weight"], params["fc1.weight"])


# Several centres, by hand


def line(*places: float) -> Params:
    """Models that differ in one number alone."""
    params = {name: torch.zeros(len(places), *p.shape[1:]) for name, p in random_params(1).items()}
    params["fc3.bias"][:, 1] = torch.tensor(places)
    return params


def places(params: Params) -> list[float]:
    found: list[float] = params["fc3.bias"][:, 1].tolist()
    return found


def test_clients_go_to_the_nearest_centre_and_get_it_back() -> None:
    """4.9 is nearer to 0, 5.1 to 10; nobody is near 100; the absent follow their centre."""
    sent = line(1, 9, 4.9, 5.1, 0)
    weights = torch.tensor([[1, 2, 3, 2, 0]])
    after, received = averaging.exchange(
        FeSEM(), MODEL, line(0, 10, 100), sent, weights, first=False
    )
    low = (1 + 3 * 4.9) / 4
    high = (2 * 9 + 2 * 5.1) / 4
    assert places(after) == pytest.approx([low, high, 100])
    assert places(received) == pytest.approx([low, high, low, high, low])


def test_the_first_centres_are_far_from_each_other() -> None:
    """0 is first, 30 farthest from it, 11 farther than 10 from both; then all go to the nearest."""
    sent = line(0, 1, 10, 11, 30)
    weights = torch.tensor([[1, 3, 1, 1, 2]])
    after, received = averaging.exchange(
        FeSEM(), MODEL, line(-9, -9, -9), sent, weights, first=True
    )
    assert places(after) == [0.75, 30, 10.5]
    assert places(received) == [0.75, 0.75, 10.5, 10.5, 30]


def test_who_was_away_is_no_first_centre() -> None:
    sent = line(0, 1, 10, 11, 90)
    weights = torch.tensor([[0, 3, 1, 1, 0]])
    after, received = averaging.exchange(
        FeSEM(clusters=2), MODEL, line(-9, -9), sent, weights, first=True
    )
    assert places(after) == [1, 10.5]
    assert places(received) == [1, 1, 10.5, 10.5, 10.5]


def test_more_centres_than_different_clients_keep_what_is_left_over() -> None:
    after, received = averaging.exchange(
        FeSEM(), MODEL, line(7, 7, 7), line(2, 2, 5), torch.tensor([[1, 1, 1]]), first=True
    )
    assert places(after) == [2, 5, 7]
    assert places(received) == [2, 2, 5]


def test_farthest_first_is_the_plain_loops() -> None:
    points = torch.randn(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    present = torch.tensor([[True] * 9, [False, False] + [True] * 7, [True, False] * 4 + [True]])
    found = farthest(points, present, 4)
    for r in range(3):
        there = [k for k in range(9) if present[r, k]]
        chosen = [there[0]]
        while len(chosen) < 4:
            chosen.append(
                max(
                    there,
                    key=lambda k: min(float((points[r, k] - points[r, c]).norm()) for c in chosen),
                )
            )
        assert torch.equal(found[r], points[r, chosen])


def test_the_distance_is_over_all_parameters() -> None:
    """The last layer makes it nearer to the second centre, the first layer makes it farther."""
    centres = line(0, 3)
    sent = line(2)
    centres["fc1.weight"][1] = 1
    after, _ = averaging.exchange(
        FeSEM(clusters=2), MODEL, centres, sent, torch.tensor([[1]]), first=False
    )
    assert places(after) == [2, 3]


@pytest.mark.parametrize("method", [FedAvg(), FedPer(), FeSEM()], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_runs_do_not_mix(method: Method, first: bool) -> None:
    params = random_params(8)
    weights = torch.tensor(WEIGHTS)
    centres, _ = averaging.same_start(method, MODEL, random_params(8, 1), 2)
    centres = {
        name: p + torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
        for name, p in centres.items()
    }
    after, received = averaging.exchange(method, MODEL, centres, params, weights, first=first)
    count = method.centres
    for r in range(2):
        mine = slice(count * r, count * r + count)
        theirs = slice(4 * r, 4 * r + 4)
        alone = averaging.exchange(
            method,
            MODEL,
            rows_of(centres, mine),
            rows_of(params, theirs),
            weights[r : r + 1],
            first=first,
        )
        torch.testing.assert_close(rows_of(after, mine), alone[0], rtol=0, atol=1e-7)
        torch.testing.assert_close(rows_of(received, theirs), alone[1], rtol=0, atol=1e-7)


# Whole federations


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("init", ["own", "same"])
def test_what_is_shared_is_the_same_for_all_from_the_start(
    mnist: Dataset, name: str, init: str
) -> None:
    """FeSEM: at the start only. FedPer and FedRep: all but the personal decision layer."""
    method = METHODS[name]()
    loop = RoundLoop([tiny(method={"name": name}, init=init, **QUICK)], mnist, CPU)
    start = loop.start()
    after, _ = loop.advance(start)
    for state in (start, after):
        for key, p in state.params[0].items():
            own = not method.shared(key in HEADS)
            different = len({row.numpy().tobytes() for row in p})
            if own and (init == "own" or state is after):
                assert different == 6
            elif method.centres == 1 or state is start:
                assert different == 1
            else:
                assert different <= method.centres


def test_weights_are_samples_of_who_took_part(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets what was trained, and clients are tested with its average, in two runs."""
    given: list[tuple[Params, Tensor, bool]] = []
    exchange = averaging.exchange

    def spy(
        method: Method,
        model: Any,
        centres: Params,
        params: Params,
        weight_RK: Tensor,
        *,
        first: bool,
    ) -> Any:
        given.append((params, weight_RK, first))
        return exchange(method, model, centres, params, weight_RK, first=first)

    monkeypatch.setattr(averaging, "exchange", spy)
    experiments = [tiny(seed=seed, method={"name": "fedavg"}, participation=0.5) for seed in (0, 1)]
    loop = RoundLoop(experiments, mnist, CPU)
    state, outcomes = loop.advance(loop.start())
    state, outcomes = loop.advance(state)
    assert [first for *_, first in given] == [True, False]
    trained, weight_RK, _ = given[-1]
    for r, experiment in enumerate(experiments):
        who = participants(experiment, 2)
        held = loop.partitions[r].train
        weights = [len(held[k]) if k in who else 0 for k in range(6)]
        assert weight_RK[r].tolist() == weights
        for name, p in trained.items():
            expected = plain_mean(numbers(p[6 * r : 6 * r + 6]), weights)
            for k in range(6 * r, 6 * r + 6):
                assert state.params[0][name][k].flatten().tolist() == pytest.approx(
                    expected, rel=1e-5, abs=1e-8
                )
        model = reference.CNN(mnist.shape, 10).eval()
        model.load_state_dict({name: p[6 * r] for name, p in state.params[0].items()})
        for k, index in enumerate(loop.partitions[r].test):
            images = (
                torch.from_numpy(mnist.test_x[index]).float() / 255 - mnist.mean[0]
            ) / mnist.std[0]
            guess = model(images)[1].argmax(1).numpy()
            assert outcomes[r].clients[k]["accuracy"] == pytest.approx(
                100 * np.mean(guess == mnist.test_y[index])
            )


def limits(mnist: Dataset, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Three rounds of two methods are the same to the bit: models, prototypes and figures."""
    (found, rows), (expected, others) = (
        run([tiny(**changes, **QUICK)], mnist, 3) for changes in (one, other)
    )
    assert equal(found.params, expected.params)
    assert np.array_equal(found.globals_[0].values_JV, expected.globals_[0].values_JV)
    assert [timeless(outcome) for (outcome,) in rows] == [
        timeless(outcome) for (outcome,) in others
    ]


def test_without_its_term_fedprox_is_fedavg(mnist: Dataset) -> None:
    limits(mnist, {"method": {"name": "fedprox", "mu": 0.0}}, {"method": {"name": "fedavg"}})


def test_with_one_centre_fesem_is_fedavg(mnist: Dataset) -> None:
    half = {"participation": 0.5}
    limits(
        mnist,
        {"method": {"name": "fesem", "clusters": 1}, **half},
        {"method": {"name": "fedavg"}, **half},
    )


def test_without_what_is_its_own_lean_is_fedrfq(mnist: Dataset) -> None:
    plain = {"name": "fedrfq-lean", "separation": 0.0, "power": 1, "bits": 24}
    for pool in ({"name": "softpool", "stride": 1}, {"name": "avg", "stride": 2}):
        limits(mnist, {"method": plain, "pool": pool}, {"method": {"name": "fedrfq"}, "pool": pool})


def test_lambda_zero_is_local_training(mnist: Dataset) -> None:
    local, _ = run([tiny(method={"name": "local"}, **QUICK)], mnist, 2)
    for method in (
        {"name": "fedproto"},
        {"name": "fedrfq"},
        {"name": "fedrfq-lean", "separation": 0.0},
    ):
        found, rows = run([tiny(method={**method, "lam": 0.0}, **QUICK)], mnist, 2)
        assert equal(found.params, local.params)
        assert (rows[1][0].record.loss_prototype or 0) > 0


def test_the_weights_of_the_terms_do_something(mnist: Dataset) -> None:
    """So that the limits above are limits."""
    found = {
        name: run([tiny(method=method, **QUICK)], mnist, 2)[0].params
        for name, method in {
            "fedavg": {"name": "fedavg"},
            "fedprox": {"name": "fedprox", "mu": 0.5},
            "fesem": {"name": "fesem", "clusters": 2},
            "fedper": {"name": "fedper"},
            "fedrep": {"name": "fedrep"},
        }.items()
    }
    names = list(found)
    assert not any(equal(found[a], found[b]) for i, a in enumerate(names) for b in names[:i])


@dataclass(frozen=True)
class Half(Method):
    """Trains the decision layer alone, or all but that."""

    head: bool = True

    def trains(self, epoch: int, head: bool) -> bool:
        return head == self.head


@pytest.mark.parametrize("head", [True, False])
def test_a_phase_leaves_the_other_layers_alone(head: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 1, 2, 2, generator=generator)
    y = torch.arange(6) % 3
    own = ClientData(x, y, torch.arange(6)[None], (6,))
    params = random_params(1)
    program = Program(MODEL, Half(head=head), Pool("none"), TrainingOptions(epochs=2, lr=0.1))
    new, _ = Engine(program, own, own).train(params, {}, torch.zeros(1, dtype=torch.int64), [0])
    for name, p in params.items():
        assert torch.equal(new[name], p) == ((name in HEADS) != head)


# What travels: the paper's CNN, ten classes, 28×28


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("local", 0),
        ("fedavg", 21_840),
        ("fedprox", 21_840),
        ("fesem", 21_840),
        ("fedper", 21_330),
        ("fedrep", 21_330),
    ],
)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_parameters_that_travel_are_counted(
    mnist: Dataset, name: str, values: int, participation: float
) -> None:
    """A participant sends them as float32 and gets as many back, in whatever stack it is."""
    experiments = [
        tiny(method={"name": name}, participation=participation, seed=seed) for seed in (0, 1)
    ]
    _, (outcomes,) = run(experiments, mnist, 1)
    for outcome in outcomes:
        record = outcome.record
        clients = round(6 * participation)
        assert (record.parameters_up, record.parameters_down) == (
            clients * values,
            clients * values,
        )
        assert (record.bytes_up, record.bytes_down) == (4 * clients * values, 4 * clients * values)
        assert record.saturated == 0


@pytest.mark.parametrize(
    ("changes", "values", "bytes_"),
    [
        ({"method": {"name": "fedproto"}}, 50, 3),
        ({"method": {"name": "fedrfq"}}, 24, 3),
        ({"method": {"name": "fedrfq-lean"}}, 12, 1),
        ({"method": {"name": "fedrfq-lean", "bits": 16}, "pool": {"stride": 1}}, 24, 2),
    ],
)
def test_prototypes_that_travel_are_counted(
    mnist: Dataset, changes: dict[str, Any], values: int, bytes_: int
) -> None:
    state, ((outcome,),) = run([tiny(**changes)], mnist, 1)
    classes = sum(row["classes"] for row in outcome.clients)
    present = int(state.globals_[0].present_J.sum())
    record = outcome.record
    assert (record.parameters_up, record.parameters_down) == (
        values * classes,
        6 * values * present,
    )
    assert record.bytes_up == 6 * 18 + classes * (6 + bytes_ * values)
    assert record.bytes_down == 6 * (18 + present * (6 + bytes_ * values))


def test_fedrep_counts_the_samples_of_both_phases(mnist: Dataset) -> None:
    _, ((fedper,),) = run([tiny(method={"name": "fedper"})], mnist, 1)
    _, ((fedrep,),) = run([tiny(method={"name": "fedrep", "head_epochs": 2})], mnist, 1)
    assert fedrep.record.samples == 3 * fedper.record.samples
