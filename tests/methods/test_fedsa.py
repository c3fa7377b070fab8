"""FedSA: anchors and losses by hand."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch

from fedrfq.methods.fedsa import FedSA
from fedrfq.methods.method import Batch, Guide
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals

ONE = 2**FRACTION_BITS
# Anchors (0, 0) and (3, 4), at distance 5.
ANCHORS = Globals(np.ones(2, np.bool_), np.array([[0, 0], [3, 4]]) * ONE)


def guide(method: FedSA) -> Guide:
    return method.guide(2, ANCHORS, {"w": torch.zeros(1, 2)})


def batch() -> Batch:
    """One sample of class 0, on its anchor; the decision layer is the identity."""
    p = torch.zeros(1, 1, 2)
    params = {"out.weight": torch.eye(2)[None], "out.bias": torch.zeros(1, 2)}
    logits = torch.zeros(1, 1, 2)
    y = torch.zeros(1, 1, dtype=torch.int64)
    return Batch(logits, p, p, y, torch.ones(1, 1), params, ("out.bias", "out.weight"))


def test_losses_by_hand() -> None:
    """The sample is at 0 from its anchor, at 5 from the other, and must be nearer by 2."""
    method = FedSA(lam=1.0, contrast=3.0, calibration=5.0, margin=2.0)
    contrast = log(1 + exp(-(5 - 2)))
    calibration = (log(2) + log(1 + exp(-1))) / 2  # logits (0, 0) and (3, 4)
    total, classification, added = method.losses(batch(), guide(method))
    assert classification.tolist() == pytest.approx([log(2)])
    assert added.tolist() == pytest.approx([3 * contrast + 5 * calibration])
    assert (total - classification).tolist() == pytest.approx(added.tolist())


def test_the_margin_is_at_most_the_distance_of_the_anchors() -> None:
    assert guide(FedSA(margin=100.0))["margin_K"].tolist() == pytest.approx([5])
    assert guide(FedSA(margin=2.0))["margin_K"].tolist() == [2]


def test_the_loss_on_anchors_trains_the_decision_layer() -> None:
    method = FedSA(lam=0.0, contrast=0.0)
    given = batch()
    weight = given.params["out.weight"].requires_grad_()
    loss = method.losses(given, guide(method))[2].sum()
    assert torch.autograd.grad(loss, weight)[0].abs().sum() > 0


def test_anchors_move_toward_the_mean_by_the_rounds_number() -> None:
    """After two rounds, half of the rest each: a quarter of the first anchor is left."""
    known = Globals(np.array([True, False]), np.array([[4, 8], [0, 0]]) * ONE)
    method = FedSA(inertia=0.5)
    first, later = (
        method.targets(rounds, known, np.random.default_rng(0)).floats() for rounds in (0, 2)
    )
    assert later[0] == pytest.approx(first[0] / 4 + 0.75 * np.array([4, 8]), abs=1e-3)
    assert later[1].tolist() == first[1].tolist()


def test_every_class_has_an_anchor_from_the_start() -> None:
    found = FedSA().targets(0, Globals.none(3, 2), np.random.default_rng(0))
    assert found.present_J.all()
    assert found.values_JV.any(1).all()
