"""No m liars can take weight from an honest client that agrees with the honest ones.

The theorem of `docs/concepts/adaptive-detector.md`, looked for counter-examples: by hypothesis, and
by attackers that search for the uploads that do most harm.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedrfq.prototypes.fixed_point import Bools, Ints, Uploads
from fedrfq.robust.attacks.attack import Foreseen, Scene
from fedrfq.robust.attacks.optimal_frame import OptimalFrame
from fedrfq.robust.detectors.adaptive import SPARED, UNIT, AdaptiveDetector
from fedrfq.robust.detectors.detector import FULL
from fedrfq.robust.detectors.disagreement import allowed, disagreements, proven
from support.judging import ONE, Clusters, dropped, lines, nowhere, sent

SEEDS = st.integers(0, 2**32 - 1)


def covered(honest: Uploads, liars: int) -> Bools:
    """Return which honest clients the theorem speaks of, by what honest clients sent alone."""
    proven_K = proven(disagreements(honest), liars)
    covered_K: Bools = UNIT * proven_K <= SPARED * allowed(proven_K, liars)
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
    rows += [[5 * ONE, 0], [None, 60 * ONE]]
    liar: list[int | None] = [None, 60 * ONE]
    assert covered(lines(rows), 1).all()
    assert dropped(AdaptiveDetector(malicious=1), lines([*rows, liar])) == []
    assert dropped(AdaptiveDetector(malicious=1), lines([*rows, liar, liar])) == [5]
    assert dropped(AdaptiveDetector(malicious=2), lines([*rows, liar, liar])) == []


def test_all_honest_clients_but_the_bound_are_covered() -> None:
    """However unlike they are: what is allowed comes from the honest clients themselves."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        counts_HJ, values_HJV = drawn(rng, 9, 2**14)
        values_HJV *= 2 ** rng.integers(0, 6, (9, 1, 1))
        for liars in range(4):
            assert (~covered(sent(values_HJV, counts_HJ), liars)).sum() <= liars


def test_who_has_few_partners_is_not_charged_however_many_liars_join_it() -> None:
    """Four liars claim everything and side with all but one, whose two partners contradict it."""
    rows: list[list[int | None]] = [[k % 3 * ONE, None] for k in range(12)]
    rows += [[None, 0], [None, 60 * ONE], [None, 61 * ONE]]
    liar: list[int | None] = [ONE, 60 * ONE]
    assert dropped(AdaptiveDetector(malicious=4), lines([*rows, *[liar] * 4])) == []
