"""Detectors: the contract of all, and hand-made rounds for those that know how many to drop."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import LIMIT, MAX_VALUES, Globals, Uploads
from fedrfq.robust.detectors import DETECTORS, Detector
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.detectors.bft import BFT
from fedrfq.robust.detectors.bft_mean import BFTMean
from fedrfq.robust.detectors.farthest import Farthest
from fedrfq.robust.detectors.median import Median
from fedrfq.robust.detectors.medoid import Medoid
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.detectors.trimmed import Trimmed
from fedrfq.robust.distances import Points, isqrt, to_centres
from support.judging import (
    LIES,
    Clusters,
    dropped,
    judged,
    lines,
    nowhere,
    sent,
    with_lies,
)

ALL = pytest.mark.parametrize(
    "detector", [kind() for kind in DETECTORS.values()], ids=list(DETECTORS)
)
KNOWING = pytest.mark.parametrize("kind", [BFT, BFTMean, Median, Trimmed, Medoid])


# Beyond the contract


def test_all_but_none_drop_liars() -> None:
    for name, kind in DETECTORS.items():
        world = Clusters(1)
        uploads = with_lies(world.round(), [3, 4], LIES["sign flip"], world.rng)
        verdict = judged(kind(), uploads)
        assert verdict.kept_K.all() == isinstance(kind(), NoDetection), name
        for row in np.flatnonzero((verdict.reason_KJ > 0).any(1)):
            assert re.match(r"class(es)? \d", verdict.why(int(row)))


@ALL
def test_the_largest_messages_do_not_overflow(detector: Detector) -> None:
    values = LIMIT - 1 - np.random.default_rng(0).integers(0, 4096, (5, 2, MAX_VALUES))
    values[0] *= -1
    verdict = judged(detector, sent(values))
    if not isinstance(detector, NoDetection):
        assert np.flatnonzero(~verdict.kept_K).tolist() == [0]


@ALL
def test_clients_keep_their_numbers_when_few_take_part(detector: Detector) -> None:
    """What is remembered is the client's, whatever row it has."""
    uploads = Clusters(3).round()
    someone = [7, 11, 3, 19]
    state = detector.start(20)
    some = sent(uploads.values_KJV[someone], uploads.counts_KJ[someone], someone)
    after, _ = detector.judge(state, nowhere(uploads), some)
    for name in state:
        changed = np.flatnonzero(after[name] != state[name])
        assert set(changed.tolist()) <= set(someone)


# Exact arithmetic


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1))
def test_roots_are_exact(squares: list[int]) -> None:
    assert isqrt(np.array(squares, np.int64)).tolist() == [math.isqrt(s) for s in squares]


@given(st.integers(0, 2**31 - 2))
def test_roots_about_squares_are_exact(root: int) -> None:
    near = [max(root * root - 1, 0), root * root, root * root + 1]
    assert isqrt(np.array(near, np.int64)).tolist() == [math.isqrt(s) for s in near]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 24, 2**13, 2**13 + 1, MAX_VALUES]), st.integers(0, 2**32))
def test_distances_are_exact(values: int, seed: int) -> None:
    """Against Python's own integers; beyond 2¹³ values, of the values without their last bits."""
    rows = np.random.default_rng(seed).choice(
        np.array([1 - LIMIT, LIMIT - 1, 0, 12345]), (3, values)
    )
    if values <= 2**13:
        shift = 0
    else:
        if values <= 2**15:
            shift = 1
        else:
            shift = 2
    cut = [[int(v) >> shift << shift for v in row] for row in rows]
    squares = [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for q in cut] for p in cut]
    assert Points.of(rows).squares_to(Points.of(rows)).tolist() == squares
    exact = [
        [math.isqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(p, rows[0], strict=True)))]
        for p in rows
    ]
    assert to_centres(sent(rows[:, None]), rows[:1]).tolist() == exact


# Those that know how many to drop


def test_the_sum_over_classes_is_unfair_to_clients_with_many() -> None:
    """Client 0 is a little off in three classes, client 1 far off in its only one."""
    uploads = lines([[30, 30, 30], [50, None, None], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert judged(BFT(), uploads).score_K.tolist() == [
        14 + 23 + 23,
        34,
        16 + 7 + 7,
        16 + 7 + 7,
        16 + 7 + 7,
    ]
    assert judged(BFTMean(), uploads).score_K.tolist() == [20, 34, 10, 10, 10]
    assert dropped(BFT(), uploads) == [0]
    assert dropped(BFTMean(), uploads) == [1]


def test_the_paper_believes_counts() -> None:
    """An attacker with most samples is the aggregate itself; clipped, it is one of several."""
    uploads = replace(
        lines([[100], [0], [1], [-1]]), counts_KJ=np.array([[10**6], [10], [10], [10]], np.int64)
    )
    assert 0 not in dropped(BFT(psi=3), BFT(psi=3).admitted(uploads))
    assert dropped(BFTMean(), BFTMean().admitted(uploads)) == [0]


def test_a_mean_is_drawn_along_where_a_median_stays() -> None:
    uploads = lines([[0], [1], [2], [60], [60], [-50]])
    assert dropped(BFTMean(), uploads) == [5]
    assert set(dropped(Median(psi=2), uploads)) == {3, 4}
    assert judged(Median(), uploads).score_K.tolist() == [1, 0, 1, 59, 59, 51]
    assert judged(Trimmed(), uploads).score_K.tolist() == [1, 0, 1, 59, 59, 51]


def test_neighbours_by_hand() -> None:
    """Of five holders with ψ = 1 the two nearest count: the root of the mean of their squares."""
    uploads = lines([[0], [1], [3], [10], [100]])
    squares = [(1, 9), (1, 4), (4, 9), (49, 81), (8100, 9409)]
    assert judged(Medoid(), uploads).score_K.tolist() == [
        math.isqrt(sum(pair) // 2) for pair in squares
    ]
    assert judged(Medoid(psi=3), uploads).score_K.tolist() == [1, 1, 2, 7, 90]


def test_a_lone_holder_has_no_neighbours() -> None:
    assert judged(Medoid(), lines([[5, 1000], [6, None], [8, None]])).score_K.tolist() == [0, 1, 2]


def test_medoids_sums_of_many_large_squares_fit() -> None:
    """Sums of squares before dividing would pass 2⁶³, and the farthest would seem the nearest."""
    values = np.random.default_rng(0).integers(-2000, 2000, (160, 1, MAX_VALUES))
    values[7] = LIMIT - 1
    uploads = Uploads(tuple(range(160)), np.ones((160, 1), np.int64), values)
    _, verdict = DETECTORS["medoid"]().judge({}, Globals.none(1, MAX_VALUES), uploads)
    assert np.flatnonzero(~verdict.kept_K).tolist() == [7]
    assert (verdict.score_K >= 0).all()


@KNOWING
def test_as_many_are_dropped_as_told(kind: type[Farthest]) -> None:
    uploads = Clusters(4).round()
    scores = judged(kind(), uploads).score_K
    for psi in (0, 1, 3, 20, 25):
        gone = dropped(kind(psi=psi), uploads)
        assert len(gone) == min(psi, 20)
        if kind is not Medoid:
            assert set(gone) == set(np.argsort(-scores, kind="stable")[:psi].tolist())


@KNOWING
def test_ties_go_by_the_number_of_the_client(kind: type[Farthest]) -> None:
    alike = np.zeros((4, 1, 2), np.int64)
    assert dropped(kind(psi=2), sent(alike, clients=(9, 2, 5, 3))) == [1, 3]


@KNOWING
def test_a_negative_number_to_drop_is_refused(kind: type[Farthest]) -> None:
    with pytest.raises(UserError, match=r"detector\.psi must be 0 or more, not -1"):
        kind(psi=-1)


# What a sender may claim


def test_only_those_that_clip_change_counts() -> None:
    uploads = replace(lines([[1], [2], [3]]), counts_KJ=np.array([[1], [2], [1000]], np.int64))
    assert NoDetection().admitted(uploads).counts_KJ.tolist() == [[1], [2], [1000]]
    assert AdaptiveDetector().admitted(uploads).counts_KJ.tolist() == [[1], [2], [2]]
    assert AdaptiveDetector(malicious=2).admitted(uploads).counts_KJ.tolist() == [[1], [1], [1]]
    assert AdaptiveDetector(clip=False).admitted(uploads).counts_KJ.tolist() == [[1], [2], [1000]]


@ALL
def test_a_lone_class_can_be_held_back(detector: Detector) -> None:
    uploads = lines([[1, 2, None], [1, None, 3], [1, None, 3]])
    assert replace(detector, lone="hold").admitted(uploads).held_KJ.tolist() == [
        [1, 0, 0],
        [1, 0, 1],
        [1, 0, 1],
    ]
    assert detector.admitted(uploads).held_KJ.tolist() == uploads.held_KJ.tolist()
    with pytest.raises(
        UserError, match=r"detector\.lone must be one of keep, apart, hold, not 'no'"
    ):
        replace(detector, lone="no")
