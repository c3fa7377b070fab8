"""Whom the adaptive detector finds, and whom it spares."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import Globals, Ints
from fedrfq.robust.detectors import observations
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from support.judging import (
    LIES,
    ONE,
    Clusters,
    Lie,
    after_rounds,
    dropped,
    judged,
    lines,
    nowhere,
    same,
    sent,
    swap,
    with_lies,
)


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
@pytest.mark.parametrize("seed", range(3))
def test_liars_are_found_and_nobody_else(lie: Lie, seed: int) -> None:
    liars = [1, 8, 12, 17]
    _, gone = after_rounds(Clusters(seed), 5, liars, lie)
    assert gone[-1] == gone[-2] == set(liars)
    assert set.union(*gone) == set(liars)


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.1, 0.5])
def test_honest_clients_are_kept_however_they_agree(spread: float) -> None:
    assert after_rounds(Clusters(5, spread), 8)[1] == [set()] * 8


def test_swapped_classes_are_found_where_distances_tell_nothing() -> None:
    """In 24 directions, honest prototypes are as far from their centre as the nearest class's."""
    liars = {1, 8, 12, 17}
    state, gone = after_rounds(Clusters(1, spread=0.3), 8, sorted(liars))
    assert gone[-1] == liars
    assert state["far"].max() < 1.5 * 1024
    assert {k for k in range(20) if state["misplaced"][k] > 256} == liars


def test_a_common_small_step_toward_another_class_is_found() -> None:
    """A quarter of the way from the honest mean is within the spread: neither far nor misplaced."""
    world = Clusters(1, spread=0.15)
    detector = AdaptiveDetector()
    liars = [1, 8, 12, 17]
    step_JV = (np.roll(world.centres_JV, 1, axis=0) - world.centres_JV) / 4
    lie_JV = np.rint((world.centres_JV + step_JV) * ONE).astype(np.int64)
    state = detector.start(20)
    verdict = None
    for _ in range(8):
        uploads = with_lies(world.round(), liars, lambda own_JV, held, rng: lie_JV, world.rng)
        state, verdict = detector.judge(state, world.globals_(), uploads)
    assert verdict is not None
    assert np.flatnonzero(~verdict.kept_K).tolist() == liars
    assert state["far"].max() < 1.5 * 1024
    assert state["misplaced"].max() < 256


def test_a_fifth_of_the_way_is_not_misplaced() -> None:
    """However closely the others agree."""
    world = Clusters(1, spread=0.02)

    def off(own_JV: Ints, held: Ints, rng: np.random.Generator) -> NDArray[np.float64]:
        return own_JV + 0.2 * (swap(own_JV, held, rng) - own_JV)

    state, _ = after_rounds(world, 8, [4], off)
    assert state["misplaced"][4] < 0


def test_classes_that_look_alike_are_no_reason() -> None:
    world = Clusters(7, spread=0.02)
    world.centres_JV[[1, 3]] = world.centres_JV[0]
    assert after_rounds(world, 8)[1] == [set()] * 8


def test_a_class_that_nobody_sent_changes_nothing() -> None:
    world = Clusters(3, spread=0.2)
    detector = AdaptiveDetector()
    uploads = world.round()
    more = sent(
        np.pad(uploads.values_KJV, ((0, 0), (0, 1), (0, 0))),
        np.pad(uploads.counts_KJ, ((0, 0), (0, 1))),
    )
    assert same(*(detector.judge(detector.start(20), nowhere(u), u)[0] for u in (uploads, more)))


def test_one_class_with_honest_clients_clears_the_others() -> None:
    """Two liars face one client in class 0, where they agree; classes 1 and 2 have more clients."""
    honest: list[list[int | None]] = [
        [10, ONE, 3 * ONE],
        *[[None, ONE + d, 3 * ONE + d] for d in (-300, -150, 0, 150, 300)],
    ]
    liars: list[list[int | None]] = [
        [5 * ONE, 9 * ONE, -9 * ONE],
        [5 * ONE + 9, 9 * ONE + 9, -9 * ONE + 9],
    ]
    assert dropped(AdaptiveDetector(), lines([*honest, *liars])) == [6, 7]


def test_an_honest_client_is_not_judged_by_what_liars_left_behind() -> None:
    """Class 0 has a poisoned global prototype, and a single client that says otherwise."""
    uploads = lines([[ONE, ONE], *[[None, ONE + d] for d in (-100, 100, 200)]])
    globals_ = Globals(np.array([True, True]), np.array([[-9 * ONE], [ONE]], np.int64))
    state = AdaptiveDetector().start(4)
    detector = AdaptiveDetector()
    for _ in range(10):
        state, verdict = detector.judge(state, globals_, uploads)
        assert verdict.kept_K.all()


def test_the_last_globals_tell_which_of_two_is_right() -> None:
    uploads = lines([[ONE, ONE], [9 * ONE, ONE], [None, ONE + 64], [None, ONE - 64]])
    globals_ = Globals(np.array([True, True]), np.array([[ONE + 90], [ONE]], np.int64))
    detector = AdaptiveDetector()
    _, verdict = detector.judge(detector.start(4), globals_, uploads)
    assert verdict.kept_K.tolist() == [True, False, True, True]


def test_copies_of_a_client_have_one_vote() -> None:
    """Nothing changes for the others, and the copies look as good as the original."""
    world = Clusters(8, spread=0.3)
    detector = AdaptiveDetector()
    state = detector.start(20)
    alone = detector.start(20)
    copies = np.isin(np.arange(20), [5, 8, 12, 17])
    for _ in range(8):
        uploads = world.round()
        for array in (uploads.values_KJV, uploads.counts_KJ):
            array[copies] = array[2]
        state, verdict = detector.judge(state, world.globals_(), uploads)
        alone, without = detector.judge(alone, world.globals_(), uploads.only(~copies))
        assert np.array_equal(verdict.score_K[~copies], without.score_K)
        assert set(verdict.score_K[copies].tolist()) == {verdict.score_K[2]}


def test_those_who_agree_best_do_not_shut_the_others_out() -> None:
    """Copies that differ in a bit vote and win the medians; what is typical is everyone's."""
    world = Clusters(6, spread=0.3)
    detector = AdaptiveDetector()
    model = int(world.held_KJ.sum(1).argmax())
    copies = [k for k in range(20) if k != model][:5]
    state = detector.start(20)
    gone = 0
    for _ in range(10):
        uploads = world.round()
        uploads.counts_KJ[copies] = uploads.counts_KJ[model]
        uploads.values_KJV[copies] = uploads.values_KJV[model] + world.rng.integers(
            -1, 2, (5, 10, 24)
        )
        state, verdict = detector.judge(state, world.globals_(), uploads)
        gone += int((~verdict.kept_K).sum())
    assert gone <= 20


def test_copies_are_told_by_their_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes an upload with another's digest does not take its vote."""
    uploads = Clusters(8, spread=0.3).round()
    before = judged(AdaptiveDetector(), uploads).score_K
    monkeypatch.setattr(observations, "_WEIGHT", np.int64(0))
    assert np.array_equal(judged(AdaptiveDetector(), uploads).score_K, before)


def test_all_alike_are_kept() -> None:
    assert dropped(AdaptiveDetector(), sent(np.full((6, 3, 4), 1234, np.int64))) == []


def test_small_differences_late_in_training_are_none() -> None:
    """A client 40 times as far as the others, but a tenth of the way to the next class."""
    tight: list[list[int | None]] = [[d, 8 * ONE + d] for d in (-20, -10, 0, 10, 20)]
    for off, out in ((ONE // 2, []), (8 * ONE, [5])):
        assert dropped(AdaptiveDetector(), lines([*tight, [off, 8 * ONE - off]])) == out


@pytest.mark.parametrize("seed", range(4))
def test_classes_that_are_not_apart_yet_are_no_reason(seed: int) -> None:
    """In the first rounds every other class is as near as one's own."""
    world = Clusters(seed, spread=0.8)
    world.centres_JV[:] = world.centres_JV[0] + 0.01 * world.centres_JV
    _, gone = after_rounds(world, 6)
    assert sum(map(len, gone)) <= 1
