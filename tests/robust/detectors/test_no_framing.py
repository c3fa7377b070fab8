"""No m liars can take weight from an honest client that agrees with the honest ones.

The theorem of `docs/concepts/adaptive-detector.md`, looked for counter-examples: by hypothesis, and
by attackers that search for the uploads that do most harm.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedrfq.prototypes.fixed_point import Bools, Ints, Uploads
from fedrfq.robust.attacks.attack import Foreseen, Scene
from fedrfq.robust.attacks.optimal_frame import OptimalFrame
from fedrfq.robust.detectors.adaptive import CRUDE, SPARED, UNIT, AdaptiveDetector
from fedrfq.robust.detectors.detector import FULL
from fedrfq.robust.detectors.disagreement import (
    allowed,
    charged,
    disagreements,
    partners,
    proven,
)
from support.judging import ONE, Clusters, dropped, lines, nowhere, sent

SEEDS = st.integers(0, 2**32 - 1)


def covered(honest: Uploads, liars: int) -> Bools:
    """Return which honest clients the theorem speaks of, by what honest clients sent alone."""
    disagreement_KK = disagreements(honest)
    proven_K = proven(disagreement_KK, liars)
    limit = SPARED * allowed(proven_K, liars)
    covered_K: Bools = UNIT * np.maximum(proven_K, disagreement_KK.max(1) // CRUDE) <= limit
    return covered_K


def joined(honest: Uploads, counts_AJ: Ints, values_AJV: Ints) -> Uploads:
    """Return the uploads of honest clients and, after them, of liars."""
    return sent(
        np.concatenate([honest.values_KJV, values_AJV]),
        np.concatenate([honest.counts_KJ, counts_AJ]),
    )


def drawn(rng: np.random.Generator, clients: int, reach: int) -> tuple[Ints, Ints]:
    """Return counts and values of clients that hold some of four classes of three values."""
    counts = rng.integers(0, 2, (clients, 4)) * rng.integers(1, 9, (clients, 4))
    return counts, rng.integers(-reach, reach + 1, (clients, 4, 3))


def aimed(rng: np.random.Generator, truth: Uploads, liars: int, reach: int) -> tuple[Ints, Ints]:
    """Return lies that aim at one client: all liars contradict it alike, in one of its classes.

    They send nothing else, so that they disagree with as few others as they can. This is how one
    liar more than the bound frames somebody: the client's rarest class has nobody to vouch for it.
    """
    holders_J = truth.held_KJ.sum(0)
    rarest = int(np.where(holders_J > 0, holders_J, np.inf).argmin())
    victim = int(rng.choice(np.flatnonzero(truth.held_KJ[:, rarest])))
    counts_AJ = np.zeros((liars, 4), np.int64)
    counts_AJ[:, rarest] = 1
    values_AJV = np.zeros((liars, 4, 3), np.int64)
    values_AJV[:, rarest] = truth.values_KJV[victim, rarest] + reach
    return counts_AJ, np.clip(values_AJV, -(2**19), 2**19)


@settings(max_examples=300, deadline=None)
@given(
    seed=SEEDS,
    honest=st.integers(3, 12),
    liars=st.integers(0, 4),
    reach=st.integers(1, 2**19),
    aim=st.booleans(),
)
def test_hypothesis_finds_no_framing(
    seed: int, honest: int, liars: int, reach: int, aim: bool
) -> None:
    """Liars send anything, near or far, or aim at one client, over three rounds.

    Records carry over from round to round.
    """
    rng = np.random.default_rng(seed)
    detector = AdaptiveDetector(malicious=liars)
    state = detector.start(honest + liars)
    safe_K = np.ones(honest, np.bool_)
    for _ in range(3):
        counts_HJ, values_HJV = drawn(rng, honest, 2**14)
        truth = sent(values_HJV, counts_HJ)
        # Who is not covered in one round may have a bad record in the next.
        safe_K &= covered(truth, liars)
        assume(safe_K.any())
        lies = drawn(rng, liars, reach)
        if aim and truth.held_KJ.any():
            lies = aimed(rng, truth, liars, reach)
        uploads = joined(truth, *lies)
        state, verdict = detector.judge(state, nowhere(uploads), uploads)
        lost_KJ = uploads.held_KJ[:honest] & (verdict.weight_KJ[:honest] < FULL)
        assert not lost_KJ[safe_K].any()


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, honest=st.integers(2, 10), liars=st.integers(0, 4))
def test_liars_only_raise_what_is_allowed_and_never_above_the_honest(
    seed: int, honest: int, liars: int
) -> None:
    rng = np.random.default_rng(seed)
    counts_HJ, values_HJV = drawn(rng, honest, 2**14)
    truth = sent(values_HJV, counts_HJ)
    among_KK = disagreements(truth)
    uploads = joined(truth, *drawn(rng, liars, 2**19))
    limit = allowed(proven(disagreements(uploads), liars), liars)
    assert allowed(proven(among_KK, liars), liars) <= limit <= among_KK.max()


def clusters_scene(seed: int, detector: AdaptiveDetector) -> Scene:
    """Return the scene of four liars among twenty clients, who can foresee every verdict."""
    world = Clusters(seed, spread=0.3)
    uploads = world.round()
    state = detector.start(20)

    def foresee(tried: Uploads) -> Foreseen:
        _, verdict = detector.judge(state, world.globals_(), tried)
        return Foreseen(verdict.weight_KJ, verdict.kept_K, verdict.score_K, world.globals_())

    return Scene(
        uploads=uploads,
        malicious_K=np.isin(np.arange(20), [1, 8, 12, 17]),
        globals_=world.globals_(),
        detector=detector,
        state=state,
        rule="weighted",
        round=2,
        classes=10,
        foresee=foresee,
    )


@pytest.mark.parametrize("seed", range(3))
def test_attackers_that_search_frame_nobody(seed: int) -> None:
    """Optimal framing tries both its directions, with many victims and strengths."""
    detector = AdaptiveDetector(malicious=4)
    scene = clusters_scene(seed, detector)
    sent_ = OptimalFrame(clients=4).forge(scene, np.random.default_rng(seed))
    _, verdict = detector.judge(scene.state, scene.globals_, sent_)
    safe_K = covered(scene.honest, 4)
    assert safe_K.sum() >= 16 - 4
    assert (verdict.weight_KJ[~scene.malicious_K][safe_K] == FULL)[
        scene.honest.held_KJ[safe_K]
    ].all()


def test_one_liar_more_than_the_bound_can_frame() -> None:
    """The last two honest clients disagree about a class of theirs; liars side with one of them."""
    rows: list[list[int | None]] = [[k * ONE, None] for k in range(5)]
    rows += [[5 * ONE, 0], [None, 17 * ONE]]
    liar: list[int | None] = [None, 17 * ONE]
    assert covered(lines(rows), 1).all()
    assert dropped(AdaptiveDetector(malicious=1), lines([*rows, liar])) == []
    assert dropped(AdaptiveDetector(malicious=1), lines([*rows, liar, liar])) == [5]
    assert dropped(AdaptiveDetector(malicious=2), lines([*rows, liar, liar])) == []


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, clients=st.integers(1, 12), liars=st.integers(0, 4))
def test_no_more_than_the_bound_are_charged_with_more_than_is_allowed(
    seed: int, clients: int, liars: int
) -> None:
    """However unlike they are, and however many of them lie."""
    rng = np.random.default_rng(seed)
    counts_KJ, values_KJV = drawn(rng, clients, 2**14)
    values_KJV *= 2 ** rng.integers(0, 6, (clients, 1, 1))
    found = disagreements(sent(values_KJV, counts_KJ))
    proven_K = proven(found, liars)
    charged_K = np.maximum(charged(found, liars), proven_K // CRUDE)
    assert (charged_K > allowed(proven_K, liars)).sum() <= liars


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, honest=st.integers(1, 14), liars=st.integers(1, 4), each=st.integers(1, 2))
def test_where_honest_clients_have_too_few_partners_nobody_is_judged(
    seed: int, honest: int, liars: int, each: int
) -> None:
    """Each holds one or two of six classes; liars claim all of them, so everybody has partners."""
    rng = np.random.default_rng(seed)
    counts_HJ = np.zeros((honest, 6), np.int64)
    for counts_J in counts_HJ:
        counts_J[rng.permutation(6)[:each]] = 1
    truth = sent(rng.integers(-ONE, ONE, (honest, 6, 3)), counts_HJ)
    assume((partners(truth) > liars).sum() <= liars)
    lies = np.ones((liars, 6), np.int64), rng.integers(-ONE, ONE, (liars, 6, 3)) * 9
    uploads = joined(truth, *lies)
    detector = AdaptiveDetector(malicious=liars)
    assert not detector._now(uploads)[:honest].any()


@pytest.mark.parametrize("seed", range(120))
def test_no_lie_on_a_grid_frames(seed: int) -> None:
    """One liar, or two that agree, send whatever there is on a grid, to few honest clients."""
    rng = np.random.default_rng(seed)
    liars = 1 + seed % 2
    honest = int(rng.integers(2 * liars, 3 * liars + 4))
    grid = np.unique(rng.integers(-6, 7, 4)) * int(rng.choice([1, 37, ONE]))
    held_HJ = rng.random((honest, 2)) < 0.6
    truth = sent(rng.choice(grid, (honest, 2, 1)) * held_HJ[..., None], held_HJ.astype(np.int64))
    safe_K = covered(truth, liars)
    detector = AdaptiveDetector(malicious=liars)
    told = [None, *grid.tolist(), int(4 * grid.max()) + 7000]
    for lie in product(told, told):
        counts_AJ = np.array([[value is not None for value in lie]] * liars, np.int64)
        values_AJV = np.array([[[value or 0] for value in lie]] * liars, np.int64)
        uploads = joined(truth, counts_AJ, values_AJV)
        # The worst round again and again.
        state = {"record": detector._now(uploads)}
        _, verdict = detector.judge(state, nowhere(uploads), uploads)
        lost_KJ = uploads.held_KJ & (verdict.weight_KJ < FULL)
        assert not lost_KJ[:honest][safe_K].any()


def test_side_with_all_but_one_that_has_few_partners_and_it_is_spared() -> None:
    """Its two honest partners contradict it, by more than twice of what is allowed."""
    rows: list[list[int | None]] = [[k % 3 * ONE, None] for k in range(12)]
    rows += [[None, 0], [None, 6 * ONE], [None, 7 * ONE]]
    liar: list[int | None] = [ONE, 6 * ONE]
    assert dropped(AdaptiveDetector(malicious=4), lines([*rows, *[liar] * 4])) == []


def test_crude_lies_are_accused_where_few_share_a_class() -> None:
    """Two liars that agree have four honest partners, not five, but they are far from them."""
    rows: list[list[int | None]] = [[k * ONE] for k in range(4)]
    liar: list[int | None] = [240 * ONE]
    assert dropped(AdaptiveDetector(malicious=2), lines([*rows, liar, liar])) == [4, 5]
