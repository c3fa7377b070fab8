"""Attacks that compute what the servers will decide, each one's rule by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedrfq.prototypes.fixed_point import LIMIT, Globals, Ints, Uploads
from fedrfq.robust.attacks import Attack, Foreseen
from fedrfq.robust.attacks.optimal_alie import OptimalAlie
from fedrfq.robust.attacks.optimal_frame import OptimalFrame, harm
from fedrfq.robust.attacks.optimal_ipm import OptimalIpm
from fedrfq.robust.attacks.optimal_swap import OptimalSwap
from fedrfq.robust.attacks.search import STEP, TRIES, displacement
from fedrfq.robust.detectors.detector import FULL, Detector, State, Verdict
from support.scenes import Near, array, same, scene_of, send

# Two honest holders around 2000 and 400, two attackers.
COUNTS = np.ones((4, 1))
VALUES = [[[1900, 400]], [[2100, 400]], [[2000, 410]], [[2000, 390]]]
KNOWN = Globals(np.ones(1, np.bool_), array([[2000, 400]]))


# The factor


def test_without_a_detector_the_largest_factor_is_sent() -> None:
    scene = scene_of(COUNTS, VALUES, [2, 3], KNOWN)
    sent = send(OptimalIpm(strength=3.0), scene)
    assert sent.values_KJV[2:].tolist() == [[[-6000, -1200]]] * 2
    sent = send(OptimalAlie(strength=2.0), scene)
    assert sent.values_KJV[2:].tolist() == [[[1800, 400]]] * 2


@pytest.mark.parametrize("reach", [150, 700, 5000])
@pytest.mark.parametrize(("attack", "size"), [(OptimalIpm(), 22_000), (OptimalAlie(), 1000)])
def test_the_factor_is_the_largest_that_is_kept(attack: Attack, size: int, reach: int) -> None:
    scene = scene_of(COUNTS, VALUES, [2, 3], KNOWN, Near(reach=reach))
    gone = 2000 - int(send(attack, scene).values_KJV[2, 0, 0])
    tried = [round(size * STEP**i) for i in range(TRIES)]
    assert gone == max(way for way in tried if way <= reach)


@pytest.mark.parametrize("attack", [OptimalIpm(), OptimalAlie()])
def test_attackers_who_would_always_be_dropped_are_honest(attack: Attack) -> None:
    scene = scene_of(COUNTS, VALUES, [2, 3], KNOWN, Near(reach=-1))
    assert same(send(attack, scene), scene.uploads)


def test_the_factor_that_moves_the_centres_most_need_not_be_the_largest() -> None:
    """Servers that believe only what is near 0 follow the attackers to 0, and no farther."""
    scene = scene_of(COUNTS, VALUES, [2, 3], KNOWN)

    def foresee(sent: Uploads) -> Foreseen:
        value_JV = sent.values_KJV[2]
        if np.abs(value_JV).max() > 500:
            value_JV = KNOWN.values_JV
        globals_ = replace(KNOWN, values_JV=value_JV)
        return Foreseen(array([[FULL]] * 4), np.ones(4, np.bool_), array([0] * 4), globals_)

    sent = send(OptimalIpm(), replace(scene, foresee=foresee))
    ways = [2000 - 22_000 * STEP**i for i in range(TRIES)]
    lowest = min(round(way) for way in ways if abs(way) <= 500)
    assert sent.values_KJV[2, 0, 0] == lowest


def test_optimal_swap_goes_as_far_as_does_most_harm() -> None:
    """Two classes at 0 and 1000 move toward each other; beyond 300 nothing is believed."""
    values = [[[0], [1000]], [[1], [1001]], [[2], [1002]]]
    known = Globals(np.ones(2, np.bool_), array([[0], [1000]]))
    scene = scene_of(np.ones((3, 2)), values, [1, 2], known)

    def foresee(sent: Uploads) -> Foreseen:
        value_JV = sent.values_KJV[1]
        if np.abs(value_JV - known.values_JV).max() > 300:
            value_JV = known.values_JV
        globals_ = replace(known, values_JV=value_JV)
        return Foreseen(array([[FULL] * 2] * 3), np.ones(3, np.bool_), array([0] * 3), globals_)

    sent = send(OptimalSwap(strength=3.0), replace(scene, foresee=foresee))
    way = max(round(3000 * STEP**i) for i in range(TRIES) if 3000 * STEP**i <= 300)
    assert sent.values_KJV[1:, :, 0].tolist() == [[way, 1000 - way]] * 2
    assert send(OptimalSwap(strength=1.0), scene).values_KJV[1, :, 0].tolist() == [1000, 0]


def test_displacement_counts_the_classes_in_both() -> None:
    one = Globals(np.array([True, True, False]), array([[1, 2], [3, 4], [50, 60]]))
    other = Globals(np.array([True, False, True]), array([[4, 6], [99, 99], [7, 8]]))
    assert displacement(one, other) == 9 + 16


# Framing


@dataclass(frozen=True)
class Apart(Detector):
    """Drop who is farther than `reach` from the mean of everybody's values, class by class."""

    exact = True
    reach: int = 100

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        held_KJV = uploads.held_KJ[..., None]
        mean_JV = uploads.values_KJV.sum(0, where=held_KJV) // np.maximum(held_KJV.sum(0), 1)
        far_KJ = np.abs(uploads.values_KJV - mean_JV).max(-1)
        far_K: Ints = np.where(uploads.held_KJ, far_KJ, 0).max(1)
        return state, Verdict.of_kept(uploads, far_K <= self.reach, far_K)


def framed(strength: float) -> int:
    """Return how many of three honest clients two attackers get dropped who hold another class."""
    counts = [[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]
    honest = [[[80], [0], [0]], [[0], [0], [0]], [[-80], [0], [0]]]
    scene = scene_of(counts, honest + [[[0], [0], [9]]] * 2, [3, 4], detector=Apart())
    return harm(scene, send(OptimalFrame(strength=strength), scene))[0] // FULL


def test_framers_move_the_centre_away_from_a_victim() -> None:
    """At γ = 1 both lie at ∓80, and the mean at ∓32: one client is 112 away, the others less."""
    assert framed(0.0) == 0
    assert framed(1.0) == 1
    assert framed(8.0) == 3, "both at ∓640, the mean at ∓256: everybody is far"


def test_framers_who_find_nobody_to_drop_make_scores_worse() -> None:
    """Their mean is 50; the farther an attacker draws it from 80, the worse for most."""
    values = [[[80]], [[80]], [[-10]], [[50]]]
    scene = scene_of(np.ones((4, 1)), values, [3], detector=Apart(reach=LIMIT))
    assert harm(scene, scene.uploads) == (0, 30 + 30 + 60)
    sent = send(OptimalFrame(strength=1.0), scene)
    assert abs(sent.values_KJV[3, 0, 0] - 20) <= 1
    assert harm(scene, sent) == (0, 38 + 38 + 52)


def test_framers_hold_on_to_the_past_where_that_drops_more() -> None:
    """Honest clients agree exactly: there is no deviation to turn around, only a way back."""
    known = Globals(np.ones(1, np.bool_), array([[400]]))
    scene = scene_of(np.ones((3, 1)), [[[1000]]] * 3, [1, 2], known, Apart(reach=300))
    sent = send(OptimalFrame(strength=1.0), scene)
    assert np.abs(sent.values_KJV[1:] - 400).max() <= 1
    assert harm(scene, sent)[0] == FULL


def test_framers_are_no_copies_of_each_other() -> None:
    known = Globals(np.ones(1, np.bool_), np.full((1, 30), 400))
    scene = scene_of(np.ones((3, 1)), np.full((3, 1, 30), 1000), [1, 2], known, Apart(reach=300))
    one, other = send(OptimalFrame(), scene).values_KJV[1:]
    assert one.tolist() != other.tolist()
    assert np.abs(one - other).max() <= 2
