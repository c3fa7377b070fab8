"""The adaptive attack: as far as the detector lets it, and no farther."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

from fedrfq.prototypes.fixed_point import LIMIT, Globals
from fedrfq.robust.attacks import Scene
from fedrfq.robust.attacks.adaptive import AdaptiveAttack
from fedrfq.robust.detectors.detector import Detector
from support.scenes import Near, array, scene_of, send

CENTRES = Globals(np.ones(3, np.bool_), array([[0, 0], [1000, 0], [5000, 1000]]))


def adaptive_scene(detector: Detector) -> Scene:
    """Class 0 is nearest to 1, 1 to 0 and 2 to 1; the honest means are the global prototypes."""
    honest = [[[10, -10], [1010, 0], [5000, 1000]], [[-10, 10], [990, 0], [5000, 1000]]]
    return scene_of(
        np.ones((4, 3)), honest + [[[0, 5], [1001, 1], [5001, 999]]] * 2, [2, 3], CENTRES, detector
    )


def test_adaptive_goes_to_its_strength_if_it_is_let() -> None:
    detector = Near(reach=LIMIT)
    sent = send(AdaptiveAttack(), adaptive_scene(detector))
    assert sent.values_KJV[2:].tolist() == [[[3000, 0], [-2000, 0], [-7000, -2000]]] * 2
    assert send(AdaptiveAttack(strength=1.0), adaptive_scene(detector)).values_KJV[2].tolist() == [
        [1000, 0],
        [0, 0],
        [1000, 0],
    ]


@pytest.mark.parametrize("reach", [20, 100, 1234, 4000, 11_000])
def test_adaptive_is_kept_and_nearly_maximal(reach: int) -> None:
    detector = Near(reach=reach)
    scene = adaptive_scene(detector)
    sent = AdaptiveAttack().forge(scene, default_rng(0))
    assert len(detector.asked) <= 10
    _, verdict = detector.judge(scene.state, scene.globals_, sent)
    assert verdict.kept_K.all()
    gamma = sent.values_KJV[2, 2, 0] / -4000 + 1.25
    assert gamma <= reach / 4000
    assert gamma > reach / 4000 - 3 / 256 - 1e-3
    assert sent.values_KJV[2].tolist() == sent.values_KJV[3].tolist()
    gone = [[1000 * gamma, 0], [1000 - 1000 * gamma, 0], [5000 - 4000 * gamma, 1000 - 1000 * gamma]]
    assert sent.values_KJV[2] == pytest.approx(np.array(gone), abs=1)


def test_adaptive_is_honest_if_not_even_the_centre_is_kept() -> None:
    detector = Near(reach=-1)
    scene = adaptive_scene(detector)
    assert AdaptiveAttack().forge(scene, default_rng(0)) is scene.uploads
    assert len(detector.asked) == 1


def test_adaptive_minds_only_itself() -> None:
    scene = adaptive_scene(Near(reach=5))
    sent = AdaptiveAttack().forge(scene, default_rng(0))
    _, verdict = scene.detector.judge(scene.state, scene.globals_, sent)
    assert verdict.kept_K.tolist() == [False, False, True, True]
    assert sent is not scene.uploads


def test_adaptive_goes_no_farther_than_the_one_who_is_found_first() -> None:
    scene = adaptive_scene(Near(reach=2000))
    counts_KJ = array([[1, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 1]])
    sent = AdaptiveAttack().forge(
        replace(scene, uploads=replace(scene.uploads, counts_KJ=counts_KJ)), default_rng(0)
    )
    assert 2950 < 5000 - sent.values_KJV[3, 2, 0] + 1000 <= 3000
    assert 480 < sent.values_KJV[2, 0, 0] <= 500


def test_adaptive_shows_the_detector_what_it_admits() -> None:
    detector = Near(lone="hold", reach=10)
    scene = scene_of(
        [[1, 1], [1, 1], [9, 1]], [[[0], [1000]], [[0], [1000]], [[1], [1]]], [2], None, detector
    )
    AdaptiveAttack().forge(scene, default_rng(0))
    assert detector.asked
    assert all(each.counts_KJ[2].tolist() == [1, 1] for each in detector.asked)


def test_adaptive_without_honest_holders_starts_from_the_global_or_the_own() -> None:
    globals_ = Globals(np.array([True, True, False]), array([[100], [200], [0]]))
    values = [[[0], [300], [0]], [[7], [8], [9]]]
    scene = scene_of([[0, 1, 0], [1, 1, 1]], values, [1], globals_)
    assert send(AdaptiveAttack(strength=0.0), scene).values_KJV[1].tolist() == [[100], [300], [9]]
    assert send(AdaptiveAttack(strength=1.0), scene).values_KJV[1].tolist() == [[300], [100], [100]]
    alone = scene_of([[0, 1], [0, 1]], [[[0], [4]], [[0], [6]]], [1])
    assert send(AdaptiveAttack(), alone).values_KJV[1].tolist() == [[0], [4]]
