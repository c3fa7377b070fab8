"""Codes and self, the controls that exchange nothing: the targets of their loss, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.learning.round_loop import RoundLoop, targets
from fedrfq.methods import Method
from fedrfq.methods.codes import Codes, codes
from fedrfq.methods.fedrfq_coded import FedRFQCoded
from fedrfq.methods.protonorm import ProtoNorm
from fedrfq.prototypes.fixed_point import Globals
from support.small import CPU, run, tiny


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_where_there_is_room_each_class_has_places_of_its_own() -> None:
    """Two classes of five values: two ones each, and one place that nobody has."""
    found = codes(2, 5, rng())
    assert sorted(found.sum(0).tolist()) == pytest.approx([0, *[0.5**0.5] * 4])
    assert np.count_nonzero(found, axis=1).tolist() == [2, 2]
    assert found @ found.T == pytest.approx(np.eye(2))


@pytest.mark.parametrize(("classes", "values", "ones"), [(62, 50, 10), (6, 4, 2), (13, 12, 6)])
def test_where_there_is_none_codes_are_random_and_distinct(
    classes: int, values: int, ones: int
) -> None:
    """Of four values with two ones there are just six codes: some must have been drawn again."""
    found = codes(classes, values, rng())
    assert np.count_nonzero(found, axis=1).tolist() == [ones] * classes
    assert np.linalg.norm(found, axis=1) == pytest.approx(1)
    assert len(np.unique(found, axis=0)) == classes


def test_more_classes_than_codes_are_refused() -> None:
    with pytest.raises(UserError, match="4 values have only 6 codes, too few for 7 classes"):
        codes(7, 4, rng())


def test_codes_follow_from_the_seed_and_from_nothing_else() -> None:
    nothing = Globals.none(10, 50)
    some = Globals(np.ones(10, np.bool_), np.full((10, 50), 7))
    first = targets(tiny(method={"name": "codes"}), 0, nothing)
    assert first.present_J.all()
    later = targets(tiny(method={"name": "codes"}, rounds=9), 5, some)
    assert later.values_JV.tobytes() == first.values_JV.tobytes()
    other = targets(tiny(method={"name": "codes"}, seed=1), 0, nothing)
    assert other.values_JV.tobytes() != first.values_JV.tobytes()


def test_the_norm_is_the_options() -> None:
    found = Codes(norm=3.0).targets(0, Globals.none(10, 50), rng()).floats()
    assert np.linalg.norm(found, axis=1) == pytest.approx(3, abs=1e-3)


@pytest.mark.parametrize("method", [Codes(), ProtoNorm(norm=0.0), FedRFQCoded()])
@pytest.mark.parametrize(("values", "norm"), [(50, 4.0), (200, 8.0), (20000, 64.0)])
def test_a_norm_that_is_not_set_suits_the_values(method: Method, values: int, norm: float) -> None:
    known = Globals(np.ones(2, np.bool_), np.eye(2, values, dtype=np.int64))
    found = method.targets(1, known, rng()).floats()
    assert np.linalg.norm(found, axis=1) == pytest.approx(norm, rel=5e-3)


def test_clients_predict_by_codes_and_send_nothing(mnist: Dataset) -> None:
    experiment = tiny(method={"name": "codes"}, partition={"shots": 40})
    state, rounds = run([experiment], mnist, 3)
    record = rounds[-1][0].record
    assert not state.globals_[0].present_J.any()
    assert (record.bytes_up, record.bytes_down) == (0, 0)
    assert (record.prototype_accuracy_mean or 0) > 60


# Self


def test_a_clients_targets_are_its_own_means(mnist: Dataset) -> None:
    """Before the first round there are none; then those of the model that the round began with."""
    loop = RoundLoop(
        [tiny(method={"name": "self"}), tiny(method={"name": "self"}, seed=1)], mnist, CPU
    )
    state = loop.start()
    (clients,) = loop.cohorts
    assert not loop.guide(state, clients, state.params[0])["present_KJ"].any()
    state, _ = loop.advance(state)
    guide = loop.guide(state, clients, state.params[0])
    means_KJV, counts_KJ = loop.engines[0].class_means(state.params[0], 10)
    assert torch.equal(guide["values_KJV"], means_KJV)
    assert torch.equal(guide["present_KJ"] > 0, counts_KJ > 0)
    assert torch.equal(guide["present_KJ"] > 0, loop.held_KJ)
    # Two clients that hold the same class have different means of it.
    j = int(loop.held_KJ.sum(0).argmax())
    holders = loop.held_KJ[:, j].nonzero()[:2, 0].tolist()
    assert not torch.equal(means_KJV[holders[0], j], means_KJV[holders[1], j])
