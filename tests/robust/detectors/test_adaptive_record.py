"""The record that the adaptive detector keeps of each client, from round to round and by hand."""

from __future__ import annotations

import numpy as np

from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from support.judging import LIES, ONE, Clusters, after_rounds, lines, nowhere, swap, with_lies


def test_one_odd_round_is_forgiven() -> None:
    world = Clusters(6)
    state, _ = after_rounds(world, 5)
    odd = with_lies(world.round(), [4], LIES["sign flip"], world.rng)
    detector = AdaptiveDetector()
    state, verdict = detector.judge(state, world.globals_(), odd)
    assert np.flatnonzero(~verdict.kept_K).tolist() == [4]
    assert detector.judge(state, world.globals_(), world.round())[1].kept_K.all()


def test_a_liar_that_pauses_is_remembered_and_forgotten_in_time() -> None:
    world = Clusters(7)
    detector = AdaptiveDetector()
    state, _ = after_rounds(world, 8, [4], LIES["sign flip"])
    out = []
    for _ in range(12):
        state, verdict = detector.judge(state, world.globals_(), world.round())
        out.append(np.flatnonzero(~verdict.kept_K).tolist())
    assert out[:3] == [[4]] * 3
    assert out[-3:] == [[]] * 3


def test_absent_clients_keep_their_record() -> None:
    world = Clusters(9)
    state, _ = after_rounds(world, 4, [4], LIES["sign flip"])
    uploads = world.round()
    after, _ = AdaptiveDetector().judge(state, world.globals_(), uploads.only(np.arange(20) != 4))
    assert after["far"][4] == state["far"][4]
    assert after["misplaced"][4] == state["misplaced"][4]


def test_the_record_fades_of_a_client_whose_classes_nobody_else_sends() -> None:
    detector = AdaptiveDetector()
    state = {
        "far": np.array([1700, 900, 900]),
        "misplaced": np.array([200, -20, 0]),
        "leaning": np.array([-7, 7, 0]),
    }
    uploads = lines([[ONE, None], [None, 5], [None, 5 * ONE]])
    after, verdict = detector.judge(state, nowhere(uploads), uploads)
    assert [after[name][0] for name in after] == [
        1700 - 136,
        200 - 40,
        -7 + 1,
    ]  # a fifth of the way to 1024, 0 and 0
    assert verdict.score_K[0] == 1564 * 1024 // 1792
    assert after["far"][1] != 900


def test_a_bad_record_fades_where_nobody_can_judge_any_more() -> None:
    """Client 0 looked bad once; from then on nobody else sends its class."""
    detector = DETECTORS["adaptive"]()
    state = dict(DETECTORS["adaptive"]().start(2))
    state["far"] = state["far"].copy()
    state["far"][0] = 3 * state["far"][0]
    alone = Uploads((0, 1), np.array([[5, 0], [0, 5]]), np.full((2, 2, 10), 1000))
    kept = []
    for _ in range(12):
        state, verdict = detector.judge(state, Globals.none(2, 10), alone)
        kept.append(bool(verdict.kept_K[0]))
    assert kept[0] is False
    assert kept[-1] is True


def test_the_limit_is_at_1024() -> None:
    world = Clusters(2, spread=0.3)
    detector = AdaptiveDetector()
    state = detector.start(20)
    for _ in range(5):
        state, verdict = detector.judge(
            state, world.globals_(), with_lies(world.round(), [3, 4], swap, world.rng)
        )
        assert np.array_equal(verdict.kept_K, verdict.score_K <= 1024)


def test_distance_by_hand() -> None:
    """64, 0 and 192 from the median of three, stretched by 3/2, and an unremarkable class added."""
    uploads = lines([[0], [64], [256]])
    state, verdict = AdaptiveDetector().judge(
        AdaptiveDetector().start(3), nowhere(uploads), uploads
    )
    now = [(1024 + 1024) // 2, (0 + 1024) // 2, (3 * 1024 + 1024) // 2]
    assert state["far"].tolist() == [1024 + (far - 1024) // 5 for far in now]
    assert verdict.kept_K.all()


def test_few_votes_are_drawn_along_more() -> None:
    """The distances 200, 200, 300, 0, 300, 100, 100 have the median 200.

    Class 0: both are 100 from their mean, 200 from each other. Class 1: 200, 0, 200 of three, so
    300, 0, 300. Class 2: 100 from each other.
    """
    uploads = lines(
        [[0, None, None], [200, None, None], [None, -200, 0], [None, 0, 100], [None, 200, None]]
    )
    state, _ = AdaptiveDetector().judge(AdaptiveDetector().start(5), nowhere(uploads), uploads)
    far = [[1024], [1024], [1536, 512], [0, 512], [1536]]
    assert state["far"].tolist() == [
        1024 + ((sum(c) + 1024) // (len(c) + 1) - 1024) // 5 for c in far
    ]
