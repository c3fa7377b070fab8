"""Methods: losses by hand and alive, their limits, and what is left open for runs to differ in."""

from __future__ import annotations

from dataclasses import fields, replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.methods import METHODS, Method
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.fedprox import FedProx
from fedrfq.methods.fedrep import FedRep
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.fedrfq_lean import FedRFQLean
from fedrfq.methods.fesem import FeSEM
from fedrfq.methods.local import Local
from fedrfq.methods.method import Batch
from fedrfq.models.cnn import CNN
from fedrfq.models.stacked import Grouped, Params, TrainingStep, stack
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Uploads
from fedrfq.prototypes.pooling import Pool
from fedrfq.robust.aggregation import combine
from support.small import told

ONE = 2**FRACTION_BITS
EXCHANGING = [name for name, kind in METHODS.items() if kind.exchanges]
# The methods that come with the program, and how many models the server keeps for each. Others may
# be registered beside them: what holds for all methods is tested for those as well.
CENTRES = {
    **dict.fromkeys(("local", "fedproto", "fedrfq", "fedrfq-lean"), 0),
    **dict.fromkeys(("fedavg", "fedprox", "fedper", "fedrep"), 1),
    "fesem": 3,
}
PROTOTYPES = {"fedproto", "fedrfq", "fedrfq-lean"}


def globals_(*rows: tuple[float, ...] | None, values: int = 2) -> Globals:
    """Global prototypes by hand; None for a class that has none yet."""
    present = np.array([row is not None for row in rows])
    numbers = np.array([[0.0] * values if row is None else row for row in rows])
    return Globals(present, (numbers * ONE).astype(np.int64))


def start(clients: int) -> Params:
    """Where clients of two parameters began the round, both at 0."""
    return {"w": torch.zeros(clients, 2)}


def twice(one: Batch) -> Batch:
    """Two clients with the same batch and parameters."""
    names = [f.name for f in fields(Batch) if f.name not in ("params", "head")]
    doubled = {name: torch.cat([getattr(one, name)] * 2) for name in names}
    params = {name: torch.cat([p] * 2) for name, p in one.params.items()}
    return replace(one, params=params, **doubled)


def batch(p: list[list[float]], y: list[int], weight: list[float], classes: int = 3) -> Batch:
    """One client's batch with all logits equal, so that the cross-entropy is log(classes)."""
    vectors = torch.tensor([p])
    params = {
        "w": torch.tensor([[3.0, 4.0]]),
        "out.weight": torch.zeros(1, classes, vectors.shape[2]),
        "out.bias": torch.zeros(1, classes),
    }
    return Batch(
        torch.zeros(1, len(y), classes),
        vectors,
        vectors,
        torch.tensor([y]),
        torch.tensor([weight]),
        params,
        ("out.weight", "out.bias"),
    )


# Samples: class 0 at distance 5 and 10 from (0, 0), class 1 at distance 1 from (1, 1), class 2
# unknown, and padding.
HAND = batch([[3, 4], [6, 8], [1, 2], [9, 9], [7, 7]], [0, 0, 1, 2, 1], [1, 1, 1, 1, 0])
KNOWN = globals_((0, 0), (1, 1), None)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Local(), 0.0),
        (FedProto(), (25 / 2 + 100 / 2 + 1 / 2) / 4),
        (FedRFQ(), (5 + 10 + 1) / 4),
        (FedRFQ(reduction="classes"), (5 + 10) / 2 + 1),
        (FedRFQLean(separation=0.0, power=1), (5 + 10 + 1) / 4),
        (FedRFQLean(separation=0.0, power=2), (25 / 2 + 100 / 2 + 1 / 2) / 4),
    ],
)
@pytest.mark.parametrize("lam", [1.0, 0.25])
def test_losses_by_hand(method: Method, expected: float, lam: float) -> None:
    if isinstance(method, FedProto):
        method = replace(method, lam=lam)
    else:
        method = method
    total, classification, prototype = method.losses(HAND, told(method, KNOWN, start(1)))
    assert classification.tolist() == pytest.approx([np.log(3)])
    assert prototype.tolist() == pytest.approx([expected])
    assert total.tolist() == pytest.approx([np.log(3) + lam * expected])


@pytest.mark.parametrize("mu", [1.0, 0.25])
def test_the_proximal_term_is_half_the_squared_way_since_the_rounds_start(mu: float) -> None:
    total, classification, proximal = FedProx(mu=mu).losses(
        HAND, told(FedProx(mu=mu), KNOWN, start(1))
    )
    assert proximal.tolist() == pytest.approx([(9 + 16) / 2])
    assert (total - classification).tolist() == pytest.approx([mu * 12.5])


def test_moments_of_batch_norm_have_no_proximal_term() -> None:
    own = {
        "bn.weight": torch.zeros(1, 2),
        "bn.running_mean": torch.zeros(1, 2),
        "bn.running_var": torch.zeros(1, 2),
    }
    assert set(told(FedProx(), KNOWN, own)) == {"mu_K", "bn.weight"}


@pytest.mark.parametrize("power", [1, 2])
def test_separation_by_hand(power: int) -> None:
    """It is over the two classes with a prototype; samples of the third count in the mean only."""
    method = FedRFQLean(power=power, lam=2.0, separation=3.0, temperature=4.0)
    to_0 = [5.0, 10.0, sqrt(5)]  # of the three samples of known classes, to (0, 0) and to (1, 1)
    to_1 = [sqrt(4 + 9), sqrt(25 + 49), 1.0]
    if power == 2:
        to_0, to_1 = ([d * d / 2 for d in ds] for ds in (to_0, to_1))
    own = [to_0[0], to_0[1], to_1[2]]
    other = [to_1[0], to_1[1], to_0[2]]
    apart = sum(log(1 + exp((a - b) / 4)) for a, b in zip(own, other, strict=True)) / 4
    total, classification, prototype = method.losses(HAND, told(method, KNOWN, start(1)))
    assert (total - classification).tolist() == pytest.approx([2 * sum(own) / 4 + 3 * apart])
    assert prototype.tolist() == pytest.approx([sum(own) / 4 + 3 * apart])


def test_weights_grow_over_the_rounds_of_the_warmup() -> None:
    method = FedRFQLean(lam=2.0, separation=3.0, warmup=4)
    guides = [method.guide(number, KNOWN, start(2)) for number in range(1, 8)]
    shares = [0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert [guide["lam_K"].tolist() for guide in guides] == [[2 * share] * 2 for share in shares]
    assert [guide["separation_K"].tolist() for guide in guides] == [
        [3 * share] * 2 for share in shares
    ]
    at_once = FedRFQLean(lam=2.0).guide(1, KNOWN, start(1))
    assert at_once["lam_K"].tolist() == [2]


def test_cross_entropy_is_over_the_real_samples() -> None:
    logits = torch.tensor([[[2.0, -1.0, 0.5], [0.0, 1.0, 2.0], [99.0, -99.0, 0.0]]])
    given = replace(batch([[0, 0, 0]] * 3, [0, 1, 1], [1, 1, 0]), logits_KBJ=logits)
    for kind in METHODS.values():
        _, classification, _ = kind().losses(
            given, told(kind(), globals_(None, None, None, values=3), start(1))
        )
        torch.testing.assert_close(
            classification[0], F.cross_entropy(logits[0, :2], torch.tensor([0, 1]))
        )


def test_each_client_has_its_own_guide() -> None:
    """Two clients of one batch, told different prototypes and different λ."""
    method = FedRFQ(lam=1.0)
    guides = [
        told(method, KNOWN, start(1)),
        told(replace(method, lam=3.0), globals_((3, 4), None, None), start(1)),
    ]
    both = {name: torch.cat([guide[name] for guide in guides]) for name in guides[0]}
    total, classification, prototype = method.losses(twice(HAND), both)
    assert prototype.tolist() == pytest.approx([4.0, (0 + 5) / 4])
    assert (total - classification).tolist() == pytest.approx([4.0, 3 * 5 / 4])


def test_each_client_has_its_own_start_and_weight() -> None:
    guides = [
        told(FedProx(mu=mu), KNOWN, {"w": torch.tensor([w])})
        for mu, w in ((1.0, [0.0, 0.0]), (3.0, [3.0, 2.0]))
    ]
    both = {name: torch.cat([guide[name] for guide in guides]) for name in guides[0]}
    total, classification, proximal = FedProx().losses(twice(HAND), both)
    assert proximal.tolist() == pytest.approx([12.5, 2.0])
    assert (total - classification).tolist() == pytest.approx([12.5, 6.0])


def at_the_prototype(method: Method) -> tuple[Tensor, Tensor]:
    p = torch.tensor([[[1.0, 2.0], [1.0, 3.0]]], requires_grad=True)
    given = replace(batch([[0, 0]] * 2, [0, 0], [1, 1]), p_KBV=p)
    loss = method.losses(given, told(method, globals_((1, 2), None, None), start(1)))[2].sum()
    return loss, torch.autograd.grad(loss, p)[0]


@pytest.mark.parametrize(
    "method", [FedProto(), FedRFQ(), FedRFQLean(power=1), FedRFQLean(power=2)], ids=str
)
def test_a_sample_on_its_prototype_has_no_gradient_rather_than_nan(method: Method) -> None:
    loss, grad = at_the_prototype(method)
    assert loss > 0
    assert grad[0, 0].tolist() == [0, 0]
    assert grad[0, 1, 1] > 0


def cnn_batch(method: Method) -> tuple[Params, Batch]:
    """Two clients' CNNs on random images, dropout off, as a training step sees them."""
    model = CNN(channels=6)
    generator = torch.Generator().manual_seed(0)
    params = stack([model.start((1, 20, 20), 3, generator) for _ in range(2)])
    params = {name: p.requires_grad_() for name, p in params.items()}
    x = torch.randn(2, 4, 1, 20, 20, generator=generator)
    y = torch.tensor([[0, 1, 2, 0], [1, 1, 2, 0]])
    weight_KB = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]])
    c, logits = model.forward(Grouped(), params, x, TrainingStep(weight_KB, None))
    head = ("fc2.weight", "fc2.bias")
    return params, Batch(logits, c, Pool(**method.pool)(c), y, weight_KB, params, head)


# Methods that have targets before anything was exchanged are told of prototypes in any case.
@pytest.mark.parametrize("name", sorted(set(EXCHANGING) - {"fedsa", "fedrfq-coded"}))
def test_prototype_loss_is_alive_where_there_are_globals_and_only_there(name: str) -> None:
    """It reaches the first layer, not the decision layer; with nothing received it is zero."""
    method = METHODS[name]()
    for present in (True, False):
        params, given = cnn_batch(method)
        if present:
            row = (0.5,) * given.p_KBV.shape[2]
        else:
            row = None
        known = globals_(row, row, row, values=given.p_KBV.shape[2])
        total, classification, prototype = method.losses(given, told(method, known, params))
        assert (classification > 0).all()
        assert ((prototype > 0) == present).all()
        assert ((total > classification) == present).all()
        grads = torch.autograd.grad(prototype.sum(), list(params.values()), allow_unused=True)
        found = dict(zip(params, grads, strict=True))
        for layer in ("conv1", "fc1"):
            assert bool(found[f"{layer}.weight"].flatten(1).abs().sum(1).gt(0).all()) == present
        assert found["fc2.weight"] is None


@pytest.mark.parametrize("name", METHODS)
def test_without_its_weights_it_is_local_training(name: str) -> None:
    kind = METHODS[name]
    weights = ("lam", "mu", "separation", "contrast", "calibration")
    method = kind(**{f.name: 0.0 for f in fields(kind) if f.name in weights})
    params, given = cnn_batch(method)
    row = (0.5,) * given.p_KBV.shape[2]
    own = {name: torch.ones_like(p) for name, p in params.items()}
    guide = told(method, globals_(row, row, row, values=len(row)), own)
    total = method.losses(given, guide)[0]
    local = Local().losses(given, {})[0]
    assert torch.equal(total, local)
    grads = [
        torch.autograd.grad(loss.sum(), list(params.values()), retain_graph=True)
        for loss in (total, local)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_the_distance_is_the_norm_not_its_square() -> None:
    difference = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]])
    assert FedRFQ().distance(difference)[0].tolist() == pytest.approx([5, sqrt(2)])
    assert FedProto().distance(difference)[0].tolist() == [12.5, 1]


def test_the_guide_has_a_row_for_each_client() -> None:
    guide = told(FedRFQ(lam=0.5), KNOWN, start(3))
    assert guide["values_KJV"].tolist() == [[[0, 0], [1, 1], [0, 0]]] * 3
    assert guide["present_KJ"].tolist() == [[1, 1, 0]] * 3
    assert guide["lam_K"].tolist() == [0.5] * 3


UPLOADS = Uploads(
    (0, 1),
    np.array([[3, 0, 0], [1, 0, 0]]),
    np.array([[[4, 8], [0, 0], [0, 0]], [[8, 0], [9, 9], [0, 0]]]),
)


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("weighted", [5, 6]), ("mean", [6, 4]), ("paper", [2, 3])]
)
@pytest.mark.parametrize("name", sorted(PROTOTYPES))
def test_uploads_are_combined_as_the_option_says(
    name: str, aggregate: str, expected: list[int]
) -> None:
    rule = METHODS[name](aggregate=aggregate).rule()  # type: ignore[call-arg]
    found = combine(globals_(None, (1, 1), None), UPLOADS, rule)
    assert found.present_J.tolist() == [True, True, False]
    assert found.values_JV[0].tolist() == expected
    assert found.values_JV[1].tolist() == [ONE, ONE]


def test_defaults_are_the_papers_as_decided() -> None:
    assert FedRFQ() == FedRFQ(lam=1.0, aggregate="weighted", reduction="samples")
    assert FedProto() == FedProto(lam=1.0, aggregate="mean")
    assert FedRFQLean() == FedRFQLean(
        1.0, "weighted", "samples", power=1, separation=0.3, temperature=0.2, bits=8
    )
    assert CENTRES.keys() <= METHODS.keys()
    assert {name: METHODS[name]().centres for name in CENTRES} == CENTRES
    assert {name for name in CENTRES if METHODS[name].exchanges} == PROTOTYPES
    assert {name for name in CENTRES if METHODS[name].pools} == {"fedrfq", "fedrfq-lean"}


@pytest.mark.parametrize("name", sorted(CENTRES.keys() - PROTOTYPES - {"fedprox"}))
def test_who_exchanges_no_prototypes_is_told_of_none(name: str) -> None:
    assert told(METHODS[name](), KNOWN, start(2)) == {}


def test_precision_is_the_methods() -> None:
    bits = {"fedproto": 24, "fedrfq": 24, "fedrfq-lean": 8}
    assert {name: METHODS[name]().precision().bits for name in bits} == bits
    assert FedRFQLean(bits=16).precision().bits == 16


def test_what_is_shared_and_what_is_trained() -> None:
    """Of the decision layer and of all below it; FedRep's third pass is the first of the body's."""
    shared = {
        **dict.fromkeys(("fedavg", "fedprox", "fesem"), (True, True)),
        **dict.fromkeys(("fedper", "fedrep"), (False, True)),
        **dict.fromkeys(("local", *PROTOTYPES), (False, False)),
    }
    for name, expected in shared.items():
        method = METHODS[name]()
        assert (method.shared(True), method.shared(False)) == expected
    fedrep = FedRep(head_epochs=2)
    assert fedrep.epochs(3) == 5
    assert [fedrep.trains(epoch, True) for epoch in range(5)] == [True, True, False, False, False]
    assert [fedrep.trains(epoch, False) for epoch in range(5)] == [False, False, True, True, True]
    for name in CENTRES.keys() - {"fedrep"}:
        assert METHODS[name]().epochs(3) == 3
        assert METHODS[name]().trains(0, True)


def test_runs_share_a_program_if_the_guide_carries_their_difference() -> None:
    assert FedRFQ().program() == FedRFQ(lam=0.3, aggregate="paper").program()
    assert FedRFQ().program() != FedRFQ(reduction="classes").program()
    assert FedProto().program() == FedProto(lam=0.3, aggregate="weighted").program()
    assert (
        FedRFQLean().program()
        == FedRFQLean(0.3, separation=0.0, temperature=2.0, warmup=5).program()
    )
    for other in ({"power": 2}, {"bits": 16}, {"reduction": "classes"}):
        assert FedRFQLean(**other).program() != FedRFQLean().program()
    assert FedProx().program() == FedProx(mu=0.5).program()
    assert FeSEM().program() != FeSEM(clusters=2).program()
    assert FedRep().program() != FedRep(head_epochs=2).program()
    assert len({kind().program() for kind in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("fedproto", {"aggregate": "mode"}),
        ("fedproto", {"lam": -0.1}),
        ("fedrfq", {"lam": float("nan")}),
        ("fedrfq", {"lam": float("inf")}),
        ("fedrfq", {"aggregate": "mode"}),
        ("fedrfq", {"reduction": "mean"}),
        ("fedprox", {"mu": -0.1}),
        ("fedprox", {"mu": float("nan")}),
        ("fedprox", {"mu": float("inf")}),
        ("fedrep", {"head_epochs": 0}),
        ("fesem", {"clusters": 0}),
        ("fedrfq-lean", {"lam": -1.0}),
        ("fedrfq-lean", {"power": 3}),
        ("fedrfq-lean", {"bits": 3}),
        ("fedrfq-lean", {"separation": -1.0}),
        ("fedrfq-lean", {"separation": float("nan")}),
        ("fedrfq-lean", {"temperature": 0.0}),
        ("fedrfq-lean", {"temperature": float("inf")}),
        ("fedrfq-lean", {"warmup": -1}),
        ("codes", {"norm": 0.0}),
        ("codes", {"norm": 65.0}),
        ("codes", {"lam": -1.0}),
        ("self", {"lam": float("nan")}),
        ("protonorm", {"norm": float("nan")}),
        ("protonorm", {"steps": -1}),
        ("protonorm", {"push": -0.1}),
        ("fedsa", {"contrast": -1.0}),
        ("fedsa", {"calibration": float("inf")}),
        ("fedsa", {"margin": -1.0}),
        ("fedsa", {"inertia": 1.1}),
        ("fedtgp", {"tau": -1.0}),
        ("fedtgp", {"server_epochs": 0}),
        ("fedtgp", {"server_batch": 0}),
        ("fedtgp", {"server_lr": 0.0}),
        ("fedorgp", {"gamma": -1.0}),
        ("fedrfq-coded", {"norm": 0.0}),
        ("fedrfq-coded", {"learned": 1.5}),
        ("fedrfq-coded", {"ramp": -1}),
        ("fedrfq-coded", {"steps": -1}),
        ("fedrfq-coded", {"push": -1.0}),
    ],
)
def test_impossible_options_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"method.{next(iter(wrong))}"):
        METHODS[name](**wrong)
