"""fedrfq-coded: its targets by hand, and its limit, which is `codes`."""

from __future__ import annotations

import numpy as np
import pytest

from fedrfq.data import Dataset
from fedrfq.methods.codes import codes
from fedrfq.methods.fedrfq_coded import FedRFQCoded
from fedrfq.methods.protonorm import spread, unit
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals
from support.small import equal, run, tiny

# The mean of class 0 is (3, 4), of norm 5; class 1 has none yet.
KNOWN = Globals(np.array([True, False]), np.array([[3, 4], [9, 9]]) * 2**FRACTION_BITS)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def found(rounds: int, **options: float) -> np.ndarray:
    targets = FedRFQCoded(**options).targets(rounds, KNOWN, rng())  # type: ignore[arg-type]
    assert targets.present_J.all()
    return targets.floats()


def test_a_target_lies_between_code_and_mean() -> None:
    own, other = codes(2, 2, rng())
    mixed = 0.75 * own + 0.25 * np.array([0.6, 0.8])
    first, second = found(1, norm=2.0, learned=0.25)
    assert first == pytest.approx(2 * mixed / np.linalg.norm(mixed), abs=1e-3)
    assert second == pytest.approx(2 * other, abs=1e-3)


def test_the_learned_share_grows_over_the_ramp() -> None:
    shares = [found(rounds, learned=0.8, ramp=4).tolist() for rounds in (0, 2, 4, 9)]
    assert shares == [found(1, learned=w).tolist() for w in (0.0, 0.4, 0.8, 0.8)]


def test_targets_repel_each_other_if_asked_to() -> None:
    apart = 2 * spread(unit(found(1, norm=2.0).astype(np.float64)), 3, push=0.05)
    assert found(1, norm=2.0, steps=3, push=0.05) == pytest.approx(apart, abs=1e-3)


def test_without_what_was_learned_clients_train_as_with_codes(mnist: Dataset) -> None:
    bare = {
        "name": "fedrfq-coded",
        "learned": 0.0,
        "separation": 0.0,
        "calibration": 0.0,
        "norm": 4.0,
    }
    ours, _ = run([tiny(method=bare)], mnist, 2)
    theirs, _ = run([tiny(method={"name": "codes", "norm": 4.0})], mnist, 2)
    assert equal(ours.params, theirs.params)


def test_what_the_targets_carry_is_no_part_of_the_program() -> None:
    other = FedRFQCoded(lam=1.0, norm=2.0, learned=0.1, ramp=3, steps=4, push=0.2, separation=0.0)
    assert other.program() == FedRFQCoded().program()
    assert FedRFQCoded(bits=16).program() != FedRFQCoded().program()
