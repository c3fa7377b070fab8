"""ProtoNorm: its steps by hand, and where they lead."""

from __future__ import annotations

import numpy as np
import pytest

from fedrfq.methods.protonorm import ProtoNorm, spread, unit
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals

RIGHT_ANGLE = np.array([[1.0, 0.0], [0.0, 1.0]])


def globals_(values: list[list[float]], present: list[bool]) -> Globals:
    return Globals(np.array(present), (np.array(values) * 2**FRACTION_BITS).astype(np.int64))


def test_a_step_by_hand() -> None:
    """The difference is (1, −1), its square 2, the force (0.5, −0.5), the step a tenth of it."""
    found = spread(RIGHT_ANGLE, 1, push=0.1)
    length = (1.05**2 + 0.05**2) ** 0.5
    assert found[0].tolist() == pytest.approx([1.05 / length, -0.05 / length])
    assert found[1].tolist() == pytest.approx([-0.05 / length, 1.05 / length])


def test_a_second_step_has_momentum() -> None:
    (a, b), _ = spread(RIGHT_ANGLE, 1, push=0.1)
    force = (a - b) / (2 * (a - b) ** 2)  # along (1, −1); the other vector is (b, a)
    velocity = 0.9 * 0.05 + 0.1 * force
    moved = np.array([[a + velocity, b - velocity]])
    assert spread(RIGHT_ANGLE, 2, push=0.1)[0] == pytest.approx(unit(moved)[0])


def test_steps_grow_shorter_every_ten() -> None:
    """The steps are so small that the force is the same in all of them."""
    shorter = spread(RIGHT_ANGLE, 11, push=1e-6)[0, 1] - spread(RIGHT_ANGLE, 10, push=1e-6)[0, 1]
    before = spread(RIGHT_ANGLE, 10, push=1e-6)[0, 1] - spread(RIGHT_ANGLE, 9, push=1e-6)[0, 1]
    # v₁₁ = 0.9 v₁₀ + 0.95 f, where v₁ = f.
    first = spread(RIGHT_ANGLE, 1, push=1e-6)[0, 1]
    assert shorter - 0.9 * before == pytest.approx(0.95 * first, rel=0.02)


def test_three_vectors_of_a_plane_end_at_equal_angles() -> None:
    started = unit(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3]]))
    found = spread(started, 500, push=0.1)
    assert found @ found.T == pytest.approx(np.where(np.eye(3), 1, -0.5), abs=0.02)


def test_targets_are_as_long_as_the_option_says_and_absent_classes_push_nobody() -> None:
    known = globals_([[5, 0], [9, 9], [0, 2]], [True, False, True])
    found = ProtoNorm(norm=3.0, steps=0).targets(1, known, np.random.default_rng(0))
    assert found.floats().tolist() == [[3, 0], [0, 0], [0, 3]]
    assert found.present_J.tolist() == [True, False, True]
    apart = ProtoNorm(norm=3.0, steps=1).targets(1, known, np.random.default_rng(0))
    pair = 3 * spread(RIGHT_ANGLE, 1, push=0.1)
    assert apart.floats()[[0, 2]] == pytest.approx(pair, abs=1e-4)


def test_prototypes_at_one_place_stay_numbers() -> None:
    known = globals_([[1, 0], [1, 0], [0, 0]], [True] * 3)
    found = ProtoNorm().targets(1, known, np.random.default_rng(0)).floats()
    assert np.linalg.norm(found, axis=1) == pytest.approx(ProtoNorm().norm, abs=1e-3)
