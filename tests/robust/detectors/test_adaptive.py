"""Whom the adaptive detector takes weight from, by hand and among drawn clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import Globals, Precision
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.detectors.detector import FULL
from fedrfq.robust.detectors.lone_classes import NOWHERE, lies_on
from fedrfq.robust.rules.bounded import Bounded
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
    sent,
    with_lies,
)

# Those that are far from what they should be; the others are a matter for the rule.
CRUDE = {name: LIES[name] for name in ("sign flip", "scaling", "noise", "random")}


@pytest.mark.parametrize("lie", CRUDE.values(), ids=list(CRUDE))
@pytest.mark.parametrize("seed", range(3))
def test_crude_liars_are_found_and_nobody_else(lie: Lie, seed: int) -> None:
    """Those that share a class with more than 2m honest ones; the rest is a matter for the rule."""
    world = Clusters(seed)
    liars = {1, 8, 12, 17}
    held_KJ = world.round().held_KJ.astype(np.int64)
    honest = [k for k in range(20) if k not in liars]
    among_honest_K = (held_KJ @ held_KJ[honest].T > 0).sum(1)
    within_reach = {k for k in liars if among_honest_K[k] > 8}
    assert len(within_reach) >= 3
    _, gone = after_rounds(world, 5, sorted(liars), lie)
    assert within_reach <= gone[-1]
    assert set.union(*gone) <= liars


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.1, 0.5])
def test_honest_clients_are_kept_however_they_agree(spread: float) -> None:
    assert after_rounds(Clusters(5, spread), 8)[1] == [set()] * 8


def test_a_verdict_by_hand() -> None:
    """At 0, 2, 4, 6 and 40 the largest disagreements but one are 6, 4, 4, 6 and 38; 6 is allowed.

    The fifth's third largest is 36. 36 / 6 counts as 4 at most: 1 + (4 − 1) / 3 is a record of 2.
    """
    uploads = lines([[0], [2 * ONE], [4 * ONE], [6 * ONE], [40 * ONE]])
    verdict = judged(AdaptiveDetector(malicious=1), uploads)
    assert verdict.weight_KJ.tolist() == [[FULL]] * 4 + [[0]]
    assert verdict.score_K.tolist() == [1024, 1024, 1024, 1024, 2048]
    assert verdict.why(4) == "class 0: far from the other holders (weight 0 %)"


def test_between_spared_and_gone_a_part_of_the_weight_is_lost() -> None:
    """The fifth's third largest is 21 − 4 = 17, and 6 are allowed: 17 / 6 is 2.833."""
    uploads = lines([[0], [2 * ONE], [4 * ONE], [6 * ONE], [21 * ONE]])
    verdict = judged(AdaptiveDetector(malicious=1), uploads)
    record = 1024 + (17 * 1024 // 6 - 1024) // 3
    assert verdict.score_K[4] == record
    assert verdict.weight_KJ[4, 0] == (2048 - record) * FULL // 512
    assert 0 < verdict.weight_KJ[4, 0] < FULL


def test_as_many_as_there_may_be_liars_accuse_nobody() -> None:
    """The fifth disagrees with one client only: that one may be the liar."""
    uploads = lines([[0, None], [None, 0], [None, 1], [None, 2], [40 * ONE, 1]])
    assert dropped(AdaptiveDetector(malicious=1), uploads) == []


def test_nobody_is_accused_where_few_can_be_compared() -> None:
    """Of four that hold the class one may lie: the others are three. Of two liars they are two."""
    uploads = lines([[0], [2], [4], [40 * ONE]])
    assert dropped(AdaptiveDetector(malicious=1), uploads) == [3]
    assert dropped(AdaptiveDetector(malicious=2), uploads) == []


def test_nobody_is_accused_where_nobody_else_could_be() -> None:
    """The fifth has four partners and the others two: nobody shows what one like it may do."""
    far = 40 * ONE
    uploads = lines([[0, None], [2, None], [None, 0], [None, 2], [far, far]])
    assert dropped(AdaptiveDetector(malicious=1), uploads) == []


def test_a_fifth_of_the_clients_may_be_malicious_unless_said_otherwise() -> None:
    """Of ten, two: two far ones are found, and three are not."""
    near: list[list[int | None]] = [[k * ONE] for k in range(10)]
    two = lines([*near[:8], [60 * ONE], [-60 * ONE]])
    three = lines([*near[:7], [60 * ONE], [61 * ONE], [-60 * ONE]])
    assert dropped(AdaptiveDetector(), two) == [8, 9]
    assert dropped(AdaptiveDetector(), three) == []


def test_one_odd_round_is_forgiven_and_a_pausing_liar_soon_forgotten() -> None:
    world = Clusters(7)
    detector = AdaptiveDetector()
    state, _ = after_rounds(world, 6, [4], LIES["scaling"])
    out = []
    for _ in range(5):
        state, verdict = detector.judge(state, world.globals_(), world.round())
        out.append(int(verdict.weight_KJ[4].max()))
    assert out[0] == 0
    assert 0 < out[1] < FULL or out[2] > 0
    assert out[-1] == FULL


def test_words_for_a_record() -> None:
    world = Clusters(7)
    state, _ = after_rounds(world, 6, [4], LIES["scaling"])
    _, verdict = AdaptiveDetector().judge(state, world.globals_(), world.round())
    assert "its client stood out in earlier rounds (weight 0 %)" in verdict.why(4)


def test_agreeing_earns_no_credit() -> None:
    world = Clusters(3)
    state, _ = after_rounds(world, 10)
    assert state["record"].min() == 1024


def test_absent_clients_keep_their_record() -> None:
    world = Clusters(9)
    state, _ = after_rounds(world, 4, [4], LIES["sign flip"])
    without = world.round().only(np.arange(20) != 4)
    after, _ = AdaptiveDetector().judge(state, world.globals_(), without)
    assert after["record"][4] == state["record"][4]
    assert after["record"][5] != 0


def test_rounding_is_no_disagreement() -> None:
    """With eight bits a step is 1024: four clients agree to the bit, one is a step off."""
    values = np.zeros((5, 2, 9), np.int64)
    values[4] = 1024
    coarse = replace(sent(values), precision=Precision(8))
    assert dropped(AdaptiveDetector(malicious=1), coarse) == []
    values[4] = 9 * 1024
    assert dropped(AdaptiveDetector(malicious=1), replace(coarse, values_KJV=values)) == [4]


def test_a_class_that_nobody_else_sent_shares_the_fate_of_the_others() -> None:
    uploads = lines([[0, None], [2, None], [4, None], [6, None], [40 * ONE, 5]])
    verdict = judged(AdaptiveDetector(malicious=1), uploads)
    assert verdict.weight_KJ[4].tolist() == [0, 0]
    assert "class 1: another class of its client is why" in verdict.why(4)


# Classes that a single client sent


def on_class(place: int) -> tuple[Globals, list[int], str]:
    """Return globals, the last client's weights, and why, for a lone class 3 at a place.

    Classes 0, 1 and 2 are at 0, 8 and 16, and usually 8 apart.
    """
    rows: list[list[int | None]] = [[0, 8 * ONE, 16 * ONE, None] for _ in range(4)]
    uploads = lines([*rows, [0, None, None, place]])
    decision = decide(
        AdaptiveDetector(), "weighted", AdaptiveDetector().start(5), nowhere(uploads), uploads
    )
    return decision.globals_, decision.verdict.weight_KJ[4].tolist(), decision.verdict.why(4)


def test_a_lone_class_counts_where_it_is_apart() -> None:
    globals_, weights, why = on_class(12 * ONE)
    assert globals_.present_J.tolist() == [True] * 4
    assert weights == [FULL, 0, 0, FULL]
    assert why == ""


def test_a_lone_class_on_top_of_another_has_no_weight() -> None:
    globals_, weights, why = on_class(11 * ONE)
    assert globals_.present_J.tolist() == [True, True, True, False]
    assert weights == [FULL, 0, 0, 0]
    assert why == "class 3: nobody else holds the class, and it lies on class 1 (weight 0 %)"


def test_what_is_usually_apart_is_one_vote_a_client() -> None:
    """Two clients share three classes far from all others, so more classes are 80 apart than 8."""
    honest: list[list[int | None]] = [[0, 8 * ONE] + [None] * 4 for _ in range(4)]
    honest[0][5] = 14 * ONE
    two: list[list[int | None]] = [[None, None, 80 * ONE, 160 * ONE, 240 * ONE, None]] * 2
    uploads = lines([*honest, *two])
    assert lies_on(nowhere(uploads), uploads).tolist() == [NOWHERE] * 6


def test_a_lone_class_is_measured_from_the_certified_centres() -> None:
    """Class 1 is sent at 9 but certified at 8, so 12 is just apart from it."""
    rows: list[list[int | None]] = [[0, 9 * ONE, 16 * ONE, None] for _ in range(4)]
    uploads = lines([*rows, [None, None, None, 12 * ONE]])
    certified = Globals(
        np.array([True, True, True, False]),
        np.array([[0], [8 * ONE], [16 * ONE], [0]], np.int64),
    )
    state = AdaptiveDetector().start(5)
    decision = decide(AdaptiveDetector(), "weighted", state, certified, uploads)
    assert decision.verdict.weight_KJ[4, 3] == FULL


# Settings


def test_it_brings_its_rule_along() -> None:
    assert AdaptiveDetector().rule("mean") == Bounded("mean", 50)
    assert AdaptiveDetector(toward=25).rule("mean") == Bounded("mean", 25)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(UserError, match="malicious"):
        AdaptiveDetector(malicious=-2)


def test_inputs_are_left_alone() -> None:
    world = Clusters(2)
    uploads = with_lies(world.round(), [3], LIES["scaling"], world.rng)
    values_KJV = uploads.values_KJV.copy()
    state = AdaptiveDetector().start(20)
    AdaptiveDetector().judge(state, world.globals_(), uploads)
    assert np.array_equal(uploads.values_KJV, values_KJV)
    assert set(state["record"].tolist()) == {1024}
