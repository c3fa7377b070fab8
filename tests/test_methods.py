"""Methods: losses by hand and alive, their limits, and what is left open for runs to differ in."""

from __future__ import annotations

from dataclasses import fields, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.methods import METHODS, Method
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.local import Local
from fedrfq.methods.method import Batch
from fedrfq.models.cnn import CNN
from fedrfq.pooling import Pool
from fedrfq.prototypes import FRACTION_BITS, Globals, Uploads
from fedrfq.stacked import Grouped, Params, Step, stack

ONE = 2**FRACTION_BITS
EXCHANGING = [name for name, kind in METHODS.items() if kind.exchanges]


def globals_(*rows: tuple[float, ...] | None, values: int = 2) -> Globals:
    """Global prototypes by hand; None for a class that has none yet."""
    present = np.array([row is not None for row in rows])
    numbers = np.array([[0.0] * values if row is None else row for row in rows])
    return Globals(present, (numbers * ONE).astype(np.int64))


def batch(p: list[list[float]], y: list[int], weight: list[float], classes: int = 3) -> Batch:
    """One client's batch with all logits equal, so that the cross-entropy is log(classes)."""
    vectors = torch.tensor([p])
    return Batch(torch.zeros(1, len(y), classes), vectors, vectors, torch.tensor([y]), torch.tensor([weight]))


# Samples: class 0 at distance 5 and 10 from (0, 0), class 1 at distance 1 from (1, 1), class 2 unknown, and padding.
HAND = batch([[3, 4], [6, 8], [1, 2], [9, 9], [7, 7]], [0, 0, 1, 2, 1], [1, 1, 1, 1, 0])
KNOWN = globals_((0, 0), (1, 1), None)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Local(), 0.0),
        (FedProto(), (25 / 2 + 100 / 2 + 1 / 2) / 4),
        (FedRFQ(), (5 + 10 + 1) / 4),
        (FedRFQ(reduction="classes"), (5 + 10) / 2 + 1),
    ],
)
@pytest.mark.parametrize("lam", [1.0, 0.25])
def test_losses_by_hand(method: Method, expected: float, lam: float) -> None:
    method = replace(method, lam=lam) if isinstance(method, FedProto) else method
    total, classification, prototype = method.losses(HAND, method.guide(KNOWN, 1))
    assert classification.tolist() == pytest.approx([np.log(3)])
    assert prototype.tolist() == pytest.approx([expected])
    assert total.tolist() == pytest.approx([np.log(3) + lam * expected])


def test_cross_entropy_is_over_the_real_samples() -> None:
    logits = torch.tensor([[[2.0, -1.0, 0.5], [0.0, 1.0, 2.0], [99.0, -99.0, 0.0]]])
    given = Batch(logits, torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), torch.tensor([[0, 1, 1]]), torch.tensor([[1.0, 1, 0]]))
    for kind in METHODS.values():
        _, classification, _ = kind().losses(given, kind().guide(globals_(None, None, None), 1))
        torch.testing.assert_close(classification[0], F.cross_entropy(logits[0, :2], torch.tensor([0, 1])))


def test_each_client_has_its_own_guide() -> None:
    """Two clients of one batch, told different prototypes and different λ."""
    method = FedRFQ(lam=1.0)
    guides = [method.guide(KNOWN, 1), replace(method, lam=3.0).guide(globals_((3, 4), None, None), 1)]
    both = {name: torch.cat([guide[name] for guide in guides]) for name in guides[0]}
    twice = Batch(*(torch.cat([t, t]) for t in vars(HAND).values()))
    total, classification, prototype = method.losses(twice, both)
    assert prototype.tolist() == pytest.approx([4.0, (0 + 5) / 4])
    assert (total - classification).tolist() == pytest.approx([4.0, 3 * 5 / 4])


def at_the_prototype(method: Method) -> tuple[Tensor, Tensor]:
    p = torch.tensor([[[1.0, 2.0], [1.0, 3.0]]], requires_grad=True)
    given = Batch(torch.zeros(1, 2, 3), p, p, torch.tensor([[0, 0]]), torch.ones(1, 2))
    loss = method.losses(given, method.guide(globals_((1, 2), None, None), 1))[2].sum()
    return loss, torch.autograd.grad(loss, p)[0]


@pytest.mark.parametrize("name", EXCHANGING)
def test_a_sample_on_its_prototype_has_no_gradient_rather_than_nan(name: str) -> None:
    loss, grad = at_the_prototype(METHODS[name]())
    assert loss > 0
    assert grad[0, 0].tolist() == [0, 0]
    assert grad[0, 1, 1] > 0


def cnn_batch(method: Method) -> tuple[Params, Batch]:
    """Two clients' CNNs on random images, dropout off, as a training step sees them."""
    model, generator = CNN(channels=6), torch.Generator().manual_seed(0)
    params = stack([model.start((1, 20, 20), 3, generator) for _ in range(2)])
    params = {name: p.requires_grad_() for name, p in params.items()}
    x, y = torch.randn(2, 4, 1, 20, 20, generator=generator), torch.tensor([[0, 1, 2, 0], [1, 1, 2, 0]])
    weight_KB = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]])
    c, logits = model.forward(Grouped(), params, x, Step(weight_KB, None))
    return params, Batch(logits, c, Pool()(c) if method.pools else c, y, weight_KB)


@pytest.mark.parametrize("name", METHODS)
def test_prototype_loss_is_alive_where_there_are_globals_and_only_there(name: str) -> None:
    """It reaches the first layer, and not the decision layer; with nothing received it is zero, gradient and all."""
    method = METHODS[name]()
    for present in (True, False):
        params, given = cnn_batch(method)
        row = (0.5,) * given.p_KBV.shape[2] if present else None
        known = globals_(row, row, row, values=given.p_KBV.shape[2])
        total, classification, prototype = method.losses(given, method.guide(known, 2))
        assert (classification > 0).all()
        alive = present and method.exchanges
        assert ((prototype > 0) == alive).all()
        assert (total > classification).all() == alive
        if not method.exchanges:
            continue
        grads = torch.autograd.grad(prototype.sum(), list(params.values()), allow_unused=True)
        found = dict(zip(params, grads, strict=True))
        for layer in ("conv1", "fc1"):
            assert bool(found[f"{layer}.weight"].flatten(1).abs().sum(1).gt(0).all()) == alive
        assert found["fc2.weight"] is None


@pytest.mark.parametrize("name", METHODS)
def test_without_lambda_it_is_local_training(name: str) -> None:
    kind = METHODS[name]
    method = kind(**{f.name: 0.0 for f in fields(kind) if f.name == "lam"})
    params, given = cnn_batch(method)
    row = (0.5,) * given.p_KBV.shape[2]
    guide = method.guide(globals_(row, row, row, values=len(row)), 2)
    total, local = method.losses(given, guide)[0], Local().losses(given, {})[0]
    assert torch.equal(total, local)
    grads = [torch.autograd.grad(loss.sum(), list(params.values()), retain_graph=True) for loss in (total, local)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_the_distance_is_the_norm_not_its_square() -> None:
    difference = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]])
    assert FedRFQ().distance(difference)[0].tolist() == pytest.approx([5, sqrt(2)])
    assert FedProto().distance(difference)[0].tolist() == [12.5, 1]


def test_the_guide_has_a_row_for_each_client() -> None:
    guide = FedRFQ(lam=0.5).guide(KNOWN, 3)
    assert guide["values_KJV"].tolist() == [[[0, 0], [1, 1], [0, 0]]] * 3
    assert guide["present_KJ"].tolist() == [[1, 1, 0]] * 3
    assert guide["lam_K"].tolist() == [0.5] * 3


UPLOADS = Uploads((0, 1), np.array([[3, 0, 0], [1, 0, 0]]), np.array([[[4, 8], [0, 0], [0, 0]], [[8, 0], [9, 9], [0, 0]]]))


@pytest.mark.parametrize(("aggregate", "expected"), [("weighted", [5, 6]), ("mean", [6, 4]), ("paper", [2, 3])])
@pytest.mark.parametrize("name", EXCHANGING)
def test_uploads_are_combined_as_the_option_says(name: str, aggregate: str, expected: list[int]) -> None:
    found = METHODS[name](aggregate=aggregate).combine(globals_(None, (1, 1), None), UPLOADS)  # type: ignore[call-arg]
    assert found.present_J.tolist() == [True, True, False]
    assert found.values_JV[0].tolist() == expected
    assert found.values_JV[1].tolist() == [ONE, ONE]


def test_defaults_are_the_papers_as_decided() -> None:
    assert FedRFQ() == FedRFQ(lam=1.0, aggregate="weighted", reduction="samples")
    assert FedProto() == FedProto(lam=1.0, aggregate="mean")
    assert [name for name, kind in METHODS.items() if kind.pools] == ["fedrfq"]
    assert EXCHANGING == ["fedproto", "fedrfq"]


def test_who_exchanges_nothing_keeps_what_there_was() -> None:
    before = globals_(None, (1, 1), None)
    assert Local().combine(before, UPLOADS) is before
    assert Local().guide(before, 2) == {}


def test_runs_share_a_program_if_the_guide_carries_their_difference() -> None:
    assert FedRFQ().program() == FedRFQ(lam=0.3, aggregate="paper").program()
    assert FedRFQ().program() != FedRFQ(reduction="classes").program()
    assert FedProto().program() == FedProto(lam=0.3, aggregate="weighted").program()
    assert len({kind().program() for kind in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("fedproto", {"aggregate": "median"}),
        ("fedproto", {"lam": -0.1}),
        ("fedrfq", {"lam": float("nan")}),
        ("fedrfq", {"lam": float("inf")}),
        ("fedrfq", {"aggregate": "median"}),
        ("fedrfq", {"reduction": "mean"}),
    ],
)
def test_impossible_options_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"method.{next(iter(wrong))}"):
        METHODS[name](**wrong)
