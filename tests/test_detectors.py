"""Detectors: the contract that all keep, hand-made rounds where each is right or wrong, and what the adaptive one finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrfq.detectors import DETECTORS, Detector, State, Verdict, evidence
from fedrfq.detectors.adaptive import Adaptive
from fedrfq.detectors.bft import BFT
from fedrfq.detectors.bft_mean import BFTMean
from fedrfq.detectors.detector import clipped
from fedrfq.detectors.distances import Points, isqrt, to_centres
from fedrfq.detectors.farthest import Farthest
from fedrfq.detectors.median import Median
from fedrfq.detectors.medoid import Medoid
from fedrfq.detectors.none import Nothing
from fedrfq.detectors.trimmed import Trimmed
from fedrfq.errors import UserError
from fedrfq.prototypes import LIMIT, MOST_VALUES, Globals, Ints, Uploads

ONE = 2**14
ALL = pytest.mark.parametrize("detector", [kind() for kind in DETECTORS.values()], ids=list(DETECTORS))
KNOWING = pytest.mark.parametrize("kind", [BFT, BFTMean, Median, Trimmed, Medoid])


def sent(values: NDArray[np.int64], counts: NDArray[np.int64] | None = None, clients: Sequence[int] = ()) -> Uploads:
    """Uploads of all classes, 10 samples each, by clients 0, 1, … unless told."""
    counts_KJ = np.full(values.shape[:2], 10, np.int64) if counts is None else counts
    return Uploads(tuple(clients) or tuple(range(len(values))), counts_KJ, values)


def lines(rows: Sequence[Sequence[int | None]]) -> Uploads:
    """Uploads of one value a class; None is a class not held."""
    values = np.array([[[v or 0] for v in row] for row in rows], np.int64)
    return sent(values, np.array([[0 if v is None else 10 for v in row] for row in rows], np.int64))


def nowhere(uploads: Uploads) -> Globals:
    return Globals.none(*uploads.values_KJV.shape[1:])


class Clusters:
    """Twenty clients with two to five of ten classes, and rounds of honest uploads about the classes' centres."""

    def __init__(self, seed: int, spread: float = 0.1) -> None:
        self.rng = np.random.default_rng(seed)
        self.spread = spread
        self.centres_JV = self.rng.uniform(0.2, 1, (10, 24))
        held = [self.rng.permutation(10)[: self.rng.integers(2, 6)] for _ in range(20)]
        self.held_KJ = np.array([[j in classes for j in range(10)] for classes in held])

    def round(self) -> Uploads:
        values = self.centres_JV + self.spread * self.rng.standard_normal((20, 10, 24))
        return sent(np.rint(values * ONE).astype(np.int64), 10 * self.held_KJ.astype(np.int64))

    def globals_(self) -> Globals:
        return Globals(np.ones(10, np.bool_), np.rint(self.centres_JV * ONE).astype(np.int64))


def judged(detector: Detector, uploads: Uploads) -> Verdict:
    return detector.judge(detector.start(max(uploads.clients, default=0) + 1), nowhere(uploads), uploads)[1]


def dropped(detector: Detector, uploads: Uploads) -> list[int]:
    return np.flatnonzero(~judged(detector, uploads).kept_K).tolist()


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


# The contract


@ALL
def test_judging_is_pure(detector: Detector) -> None:
    world = Clusters(0)
    uploads, globals_ = world.round(), world.globals_()
    state = detector.start(20)
    for _ in range(3):
        copies = [a.copy() for a in (uploads.values_KJV, uploads.counts_KJ, globals_.values_JV, *state.values())]
        after, verdict = detector.judge(state, globals_, uploads)
        again, verdict_again = detector.judge(state, globals_, uploads)
        arrays = (uploads.values_KJV, uploads.counts_KJ, globals_.values_JV, *state.values())
        assert all(np.array_equal(a, b) for a, b in zip(arrays, copies, strict=True))
        assert same(after, again)
        assert np.array_equal(verdict.kept_K, verdict_again.kept_K)
        assert np.array_equal(verdict.score_K, verdict_again.score_K)
        state, uploads = after, world.round()


@ALL
def test_verdicts_are_bits_and_whole_numbers(detector: Detector) -> None:
    uploads = Clusters(1).round()
    state, verdict = detector.judge(detector.start(20), nowhere(uploads), uploads)
    assert verdict.kept_K.dtype == np.bool_
    assert verdict.score_K.dtype == np.int64
    assert verdict.kept_K.shape == verdict.score_K.shape == (20,)
    assert all(values.dtype == np.int64 for values in state.values())


@ALL
def test_the_order_of_the_rows_does_not_matter(detector: Detector) -> None:
    world = Clusters(2, spread=0.4)
    state, other = detector.start(20), detector.start(20)
    for seed in range(5):
        uploads, order = world.round(), np.random.default_rng(seed).permutation(20)
        shuffled = sent(uploads.values_KJV[order], uploads.counts_KJ[order], order.tolist())
        state, verdict = detector.judge(state, world.globals_(), uploads)
        other, permuted = detector.judge(other, world.globals_(), shuffled)
        assert np.array_equal(permuted.kept_K, verdict.kept_K[order])
        assert np.array_equal(permuted.score_K, verdict.score_K[order])
        assert same(state, other)


@ALL
@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 3, 4), (2, 1, 1), (5, 1, 4), (3, 10, 1), (4, 2, 0)])
@pytest.mark.parametrize("known", [False, True])
def test_odd_shapes(detector: Detector, shape: tuple[int, int, int], known: bool) -> None:
    uploads = sent(np.random.default_rng(0).integers(-ONE, ONE, shape))
    globals_ = Globals(np.full(shape[1], known), np.zeros(shape[1:], np.int64))
    _, verdict = detector.judge(detector.start(shape[0]), globals_, uploads)
    assert len(verdict.kept_K) == shape[0]


@ALL
def test_a_client_without_classes_and_a_class_without_clients(detector: Detector) -> None:
    uploads = lines([[ONE, None, None], [None, None, None], [ONE, 2 * ONE, None]])
    assert not isinstance(detector, Farthest) or judged(detector, uploads).score_K[1] == 0
    assert judged(detector, uploads).kept_K[1]


@ALL
def test_the_largest_messages_do_not_overflow(detector: Detector) -> None:
    values = LIMIT - 1 - np.random.default_rng(0).integers(0, 4096, (5, 2, MOST_VALUES))
    values[0] *= -1
    verdict = judged(detector, sent(values))
    assert verdict.score_K.min() >= 0
    if not isinstance(detector, Nothing):
        assert np.flatnonzero(~verdict.kept_K).tolist() == [0]


@ALL
def test_clients_keep_their_numbers_when_few_take_part(detector: Detector) -> None:
    """What is remembered is the client's, whatever row it has."""
    uploads, someone = Clusters(3).round(), [7, 11, 3, 19]
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
@given(st.sampled_from([1, 24, 2**13, 2**13 + 1, MOST_VALUES]), st.integers(0, 2**32))
def test_distances_are_exact(values: int, seed: int) -> None:
    """Against Python's own integers; beyond 2¹³ values, of the values without their last bits."""
    rows = np.random.default_rng(seed).choice(np.array([1 - LIMIT, LIMIT - 1, 0, 12345]), (3, values))
    shift = 0 if values <= 2**13 else 1 if values <= 2**15 else 2
    cut = [[int(v) >> shift << shift for v in row] for row in rows]
    squares = [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for q in cut] for p in cut]
    assert Points.of(rows).squares_to(Points.of(rows)).tolist() == squares
    exact = [[math.isqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(p, rows[0], strict=True)))] for p in rows]
    assert to_centres(sent(rows[:, None]), rows[:1]).tolist() == exact


# Those that know how many to drop


def test_the_sum_over_classes_is_unfair_to_clients_with_many() -> None:
    """Client 0 is a little off in three classes, client 1 far off in its only one."""
    uploads = lines([[30, 30, 30], [50, None, None], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert judged(BFT(), uploads).score_K.tolist() == [14 + 23 + 23, 34, 16 + 7 + 7, 16 + 7 + 7, 16 + 7 + 7]
    assert judged(BFTMean(), uploads).score_K.tolist() == [20, 34, 10, 10, 10]
    assert dropped(BFT(), uploads) == [0]
    assert dropped(BFTMean(), uploads) == [1]


def test_the_paper_believes_counts() -> None:
    """An attacker with most of the samples is the aggregate itself; clipped, it is one of several."""
    uploads = replace(lines([[100], [0], [1], [-1]]), counts_KJ=np.array([[10**6], [10], [10], [10]], np.int64))
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
    assert judged(Medoid(), uploads).score_K.tolist() == [math.isqrt(sum(pair) // 2) for pair in squares]
    assert judged(Medoid(psi=3), uploads).score_K.tolist() == [1, 1, 2, 7, 90]


def test_a_lone_holder_has_no_neighbours() -> None:
    assert judged(Medoid(), lines([[5, 1000], [6, None], [8, None]])).score_K.tolist() == [0, 1, 2]


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
    with pytest.raises(UserError, match=r"detector\.psi must be at least 0, it is -1"):
        kind(psi=-1)


# What a sender may claim


def test_counts_are_cut_to_the_lower_median_of_the_holders() -> None:
    counts = np.array([[5, 0, 7], [100, 0, 0], [9, 0, 3], [8, 4, 0]], np.int64)
    assert clipped(counts).tolist() == [[5, 0, 3], [8, 0, 0], [8, 0, 3], [8, 4, 0]]
    assert clipped(np.zeros((0, 3), np.int64)).shape == (0, 3)


def test_only_those_that_clip_change_counts() -> None:
    uploads = replace(lines([[1], [2], [3]]), counts_KJ=np.array([[1], [2], [1000]], np.int64))
    assert Nothing().admitted(uploads).counts_KJ.tolist() == [[1], [2], [1000]]
    assert Adaptive().admitted(uploads).counts_KJ.tolist() == [[1], [2], [2]]
    assert Adaptive(clip=False).admitted(uploads).counts_KJ.tolist() == [[1], [2], [1000]]


@ALL
def test_a_lone_class_can_be_held_back(detector: Detector) -> None:
    uploads = lines([[1, 2, None], [1, None, 3], [1, None, 3]])
    assert replace(detector, lone="hold").admitted(uploads).held_KJ.tolist() == [[1, 0, 0], [1, 0, 1], [1, 0, 1]]
    assert detector.admitted(uploads).held_KJ.tolist() == uploads.held_KJ.tolist()
    with pytest.raises(UserError, match=r"detector\.lone is one of keep, hold, not 'no'"):
        replace(detector, lone="no")


# The adaptive one


Lie = Callable[[Ints, Ints, np.random.Generator], NDArray[np.float64] | Ints]


def swap(own_JV: Ints, held: Ints, rng: np.random.Generator) -> Ints:
    lie = own_JV.copy()
    lie[held] = own_JV[np.roll(held, 1)]
    return lie


def one_class(own_JV: Ints, held: Ints, rng: np.random.Generator) -> Ints:
    lie = own_JV.copy()
    lie[held[0]] *= -1
    return lie


LIES: dict[str, Lie] = {
    "sign flip": lambda own_JV, held, rng: -own_JV,
    "scaling": lambda own_JV, held, rng: 5 * own_JV,
    "noise": lambda own_JV, held, rng: own_JV + ONE * rng.standard_normal(own_JV.shape),
    "random": lambda own_JV, held, rng: ONE * rng.uniform(-1, 1, own_JV.shape),
    "zeros": lambda own_JV, held, rng: 0 * own_JV,
    "class swap": swap,
    "sign flip in one class": one_class,
}


def with_lies(uploads: Uploads, liars: Sequence[int], lie: Lie, rng: np.random.Generator) -> Uploads:
    values = uploads.values_KJV.copy()
    for k in liars:
        values[k] = np.rint(lie(values[k], np.flatnonzero(uploads.counts_KJ[k]), rng)).astype(np.int64)
    return replace(uploads, values_KJV=values)


def after_rounds(world: Clusters, rounds: int, liars: Sequence[int] = (), lie: Lie = swap) -> tuple[State, list[set[int]]]:
    """The detector's state, and whom it dropped in each of the rounds. The globals are the honest ones."""
    detector = Adaptive()
    state, gone = detector.start(20), []
    for number in range(rounds):
        globals_ = world.globals_() if number else Globals.none(10, 24)
        state, verdict = detector.judge(state, globals_, with_lies(world.round(), liars, lie, world.rng))
        gone.append(set(np.flatnonzero(~verdict.kept_K).tolist()))
    return state, gone


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
    """Spread in 24 directions, honest prototypes are as far from their centre as those of the nearest class are."""
    liars = {1, 8, 12, 17}
    state, gone = after_rounds(Clusters(1, spread=0.3), 8, sorted(liars))
    assert gone[-1] == liars
    assert state["far"].max() < 1.5 * 1024
    assert {k for k in range(20) if state["misplaced"][k] > 256} == liars


def test_a_common_small_step_toward_another_class_is_found() -> None:
    """A quarter of the way from the honest mean, less than the honest spread: neither far nor misplaced."""
    world, detector, liars = Clusters(1, spread=0.15), Adaptive(), [1, 8, 12, 17]
    step_JV = (np.roll(world.centres_JV, 1, axis=0) - world.centres_JV) / 4
    lie_JV = np.rint((world.centres_JV + step_JV) * ONE).astype(np.int64)
    state, verdict = detector.start(20), None
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
    world, detector = Clusters(3, spread=0.2), Adaptive()
    uploads = world.round()
    more = sent(np.pad(uploads.values_KJV, ((0, 0), (0, 1), (0, 0))), np.pad(uploads.counts_KJ, ((0, 0), (0, 1))))
    assert same(*(detector.judge(detector.start(20), nowhere(u), u)[0] for u in (uploads, more)))


def test_one_class_with_honest_clients_clears_the_others() -> None:
    """Two liars against one client in class 0, where they agree; classes 1 and 2 have more clients."""
    honest: list[list[int | None]] = [[10, ONE, 3 * ONE], *[[None, ONE + d, 3 * ONE + d] for d in (-300, -150, 0, 150, 300)]]
    liars: list[list[int | None]] = [[5 * ONE, 9 * ONE, -9 * ONE], [5 * ONE + 9, 9 * ONE + 9, -9 * ONE + 9]]
    assert dropped(Adaptive(), lines([*honest, *liars])) == [6, 7]


def test_an_honest_client_is_not_judged_by_what_liars_left_behind() -> None:
    """Class 0 has a poisoned global prototype, and a single client that says otherwise."""
    uploads = lines([[ONE, ONE], *[[None, ONE + d] for d in (-100, 100, 200)]])
    globals_ = Globals(np.array([True, True]), np.array([[-9 * ONE], [ONE]], np.int64))
    state, detector = Adaptive().start(4), Adaptive()
    for _ in range(10):
        state, verdict = detector.judge(state, globals_, uploads)
        assert verdict.kept_K.all()


def test_the_last_globals_tell_which_of_two_is_right() -> None:
    uploads = lines([[ONE, ONE], [9 * ONE, ONE], [None, ONE + 64], [None, ONE - 64]])
    globals_ = Globals(np.array([True, True]), np.array([[ONE + 90], [ONE]], np.int64))
    detector = Adaptive()
    _, verdict = detector.judge(detector.start(4), globals_, uploads)
    assert verdict.kept_K.tolist() == [True, False, True, True]


def test_one_odd_round_is_forgiven() -> None:
    world = Clusters(6)
    state, _ = after_rounds(world, 5)
    odd = with_lies(world.round(), [4], LIES["sign flip"], world.rng)
    detector = Adaptive()
    state, verdict = detector.judge(state, world.globals_(), odd)
    assert np.flatnonzero(~verdict.kept_K).tolist() == [4]
    assert detector.judge(state, world.globals_(), world.round())[1].kept_K.all()


def test_a_liar_that_pauses_is_remembered_and_forgotten_in_time() -> None:
    world, detector = Clusters(7), Adaptive()
    state, _ = after_rounds(world, 8, [4], LIES["sign flip"])
    out = []
    for _ in range(12):
        state, verdict = detector.judge(state, world.globals_(), world.round())
        out.append(np.flatnonzero(~verdict.kept_K).tolist())
    assert out[:3] == [[4]] * 3
    assert out[-3:] == [[]] * 3


def test_copies_of_a_client_have_one_vote() -> None:
    """Nothing changes for the others, and the copies look as good as the original."""
    world, detector = Clusters(8, spread=0.3), Adaptive()
    state, alone = detector.start(20), detector.start(20)
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
    """Copies that differ in a bit vote on their own and win the medians; what is typical is still everyone's."""
    world, detector = Clusters(6, spread=0.3), Adaptive()
    model = int(world.held_KJ.sum(1).argmax())
    copies = [k for k in range(20) if k != model][:5]
    state, gone = detector.start(20), 0
    for _ in range(10):
        uploads = world.round()
        uploads.counts_KJ[copies] = uploads.counts_KJ[model]
        uploads.values_KJV[copies] = uploads.values_KJV[model] + world.rng.integers(-1, 2, (5, 10, 24))
        state, verdict = detector.judge(state, world.globals_(), uploads)
        gone += int((~verdict.kept_K).sum())
    assert gone <= 20


def test_copies_are_told_by_their_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes an upload with another's digest does not take its vote."""
    uploads = Clusters(8, spread=0.3).round()
    before = judged(Adaptive(), uploads).score_K
    monkeypatch.setattr(evidence, "_WEIGHT", np.int64(0))
    assert np.array_equal(judged(Adaptive(), uploads).score_K, before)


def test_all_alike_are_kept() -> None:
    assert dropped(Adaptive(), sent(np.full((6, 3, 4), 1234, np.int64))) == []


def test_absent_clients_keep_their_record() -> None:
    world = Clusters(9)
    state, _ = after_rounds(world, 4, [4], LIES["sign flip"])
    uploads = world.round()
    after, _ = Adaptive().judge(state, world.globals_(), uploads.only(np.arange(20) != 4))
    assert after["far"][4] == state["far"][4]
    assert after["misplaced"][4] == state["misplaced"][4]


def test_the_record_fades_of_a_client_whose_classes_nobody_else_sends() -> None:
    detector = Adaptive()
    state = {"far": np.array([1700, 900, 900]), "misplaced": np.array([200, -20, 0]), "leaning": np.array([-7, 7, 0])}
    uploads = lines([[ONE, None], [None, 5], [None, 5 * ONE]])
    after, verdict = detector.judge(state, nowhere(uploads), uploads)
    assert [after[name][0] for name in after] == [1700 - 136, 200 - 40, -7 + 1]  # a fifth of the way to 1024, 0 and 0
    assert verdict.score_K[0] == 1564 * 1024 // 1792
    assert after["far"][1] != 900


def test_the_limit_is_at_1024() -> None:
    world, detector = Clusters(2, spread=0.3), Adaptive()
    state = detector.start(20)
    for _ in range(5):
        state, verdict = detector.judge(state, world.globals_(), with_lies(world.round(), [3, 4], swap, world.rng))
        assert np.array_equal(verdict.kept_K, verdict.score_K <= 1024)


def test_distance_by_hand() -> None:
    """Distances 64, 0 and 192 from the median of three, stretched by 3/2, and one unremarkable class added."""
    uploads = lines([[0], [64], [256]])
    state, verdict = Adaptive().judge(Adaptive().start(3), nowhere(uploads), uploads)
    now = [(1024 + 1024) // 2, (0 + 1024) // 2, (3 * 1024 + 1024) // 2]
    assert state["far"].tolist() == [1024 + (far - 1024) // 5 for far in now]
    assert verdict.kept_K.all()


def test_few_votes_are_drawn_along_more() -> None:
    """Class 0: both are 100 from their mean, 200 from each other. Class 1: 200, 0, 200 of three, so 300, 0, 300. Class 2:
    100 from each other. The median of 200, 200, 300, 0, 300, 100, 100 is 200."""
    uploads = lines([[0, None, None], [200, None, None], [None, -200, 0], [None, 0, 100], [None, 200, None]])
    state, _ = Adaptive().judge(Adaptive().start(5), nowhere(uploads), uploads)
    far = [[1024], [1024], [1536, 512], [0, 512], [1536]]
    assert state["far"].tolist() == [1024 + ((sum(c) + 1024) // (len(c) + 1) - 1024) // 5 for c in far]


def test_small_differences_late_in_training_are_none() -> None:
    """A client 40 times as far as the others, but a tenth of the way to the next class."""
    tight: list[list[int | None]] = [[d, 8 * ONE + d] for d in (-20, -10, 0, 10, 20)]
    for off, out in ((ONE // 2, []), (8 * ONE, [5])):
        assert dropped(Adaptive(), lines([*tight, [off, 8 * ONE - off]])) == out


@pytest.mark.parametrize("seed", range(4))
def test_classes_that_are_not_apart_yet_are_no_reason(seed: int) -> None:
    """In the first rounds every other class is as near as one's own."""
    world = Clusters(seed, spread=0.8)
    world.centres_JV[:] = world.centres_JV[0] + 0.01 * world.centres_JV
    _, gone = after_rounds(world, 6)
    assert sum(map(len, gone)) <= 1


def test_medoids_sums_of_many_large_squares_fit() -> None:
    """Sums of squares before dividing would pass 2⁶³ here, and the farthest would seem the nearest."""
    values = np.random.default_rng(0).integers(-2000, 2000, (160, 1, MOST_VALUES))
    values[7] = LIMIT - 1
    uploads = Uploads(tuple(range(160)), np.ones((160, 1), np.int64), values)
    _, verdict = DETECTORS["medoid"]().judge({}, Globals.none(1, MOST_VALUES), uploads)
    assert np.flatnonzero(~verdict.kept_K).tolist() == [7]
    assert (verdict.score_K >= 0).all()


def test_a_bad_record_fades_where_nobody_can_judge_any_more() -> None:
    """Client 0 looked bad once; from then on nobody else sends its class."""
    detector, state = DETECTORS["adaptive"](), dict(DETECTORS["adaptive"]().start(2))
    state["far"] = state["far"].copy()
    state["far"][0] = 3 * state["far"][0]
    alone = Uploads((0, 1), np.array([[5, 0], [0, 5]]), np.full((2, 2, 10), 1000))
    kept = []
    for _ in range(12):
        state, verdict = detector.judge(state, Globals.none(2, 10), alone)
        kept.append(bool(verdict.kept_K[0]))
    assert kept[0] is False
    assert kept[-1] is True
