"""Aggregation rules: weights from none to full, the largest numbers, rules that remember."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.prototypes.fixed_point import LIMIT, MAX_COUNT, Globals, Ints, Uploads
from fedrfq.robust.aggregation import Decision, aggregate, combine, decide, detector_state, start
from fedrfq.robust.centres import CENTRES, FULL
from fedrfq.robust.detectors import Reason, State, Verdict
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.rules import RULES, Rule
from support.remembering import Halving, Slow


def column(values: list[int], counts: list[int]) -> Uploads:
    """Return uploads of one class with one value."""
    clients = tuple(range(len(values)))
    return Uploads(clients, np.array(counts)[:, None], np.array(values)[:, None, None])


def centre(rule: str, values: list[int], counts: list[int], weights: list[int]) -> int:
    return int(CENTRES[rule](column(values, counts), np.array(weights)[:, None])[0, 0])


# Weights


@pytest.mark.parametrize(
    ("rule", "weights", "expected"),
    [
        # 10 · 1 sample, 40 · 2 samples, 100 · 4 samples.
        ("weighted", [FULL, FULL, FULL], (10 + 80 + 400) // 7),
        ("weighted", [FULL, FULL, FULL // 4], (10 + 80 + 100) // 4),
        ("weighted", [FULL, FULL, 0], (10 + 80) // 3),
        ("mean", [FULL, FULL, FULL // 2], (10 + 40 + 50) * 2 // 5),
        ("paper", [FULL, FULL, 0], (10 + 80) // 3 // 2),
        # The middle two halves, of the same weight as the heaviest: half of 10, half of 40.
        ("median", [FULL, FULL, 0], 25),
        # 10 and 40 weigh 1, 100 weighs a half: the middle 1 begins at 0.75 and ends at 1.75.
        ("median", [FULL, FULL, FULL // 2], (10 + 3 * 40) // 4),
        ("trimmed", [FULL, FULL, FULL], 40),
        # Two and a half holders have no whole third to cut.
        ("trimmed", [FULL, FULL, FULL // 2], (10 + 40 + 50) * 2 // 5),
    ],
)
def test_weights_by_hand(rule: str, weights: list[int], expected: int) -> None:
    assert centre(rule, [10, 40, 100], [1, 2, 4], weights) == expected


UPLOADS = st.lists(
    st.tuples(st.integers(1 - LIMIT, LIMIT - 1), st.integers(1, MAX_COUNT), st.integers(0, FULL)),
    min_size=1,
    max_size=8,
)


def expanded(rule: str, uploads: list[tuple[int, int, int]]) -> int:
    """Return the centre by its definition: every holder is as many equal ones as it weighs."""
    ordered = sorted((value, weight) for value, _, weight in uploads if weight)
    total = sum(weight for _, weight in ordered)
    unit = max(weight for _, weight in ordered)
    if rule == "median":
        cut = (total - unit) // 2
    else:
        cut = total // (3 * unit) * unit
    units = [value for value, weight in ordered for _ in range(weight)]
    middle = units[cut : total - cut]
    return floor(Fraction(sum(middle), len(middle)))


@settings(deadline=None)
@given(UPLOADS)
def test_every_rule_is_its_definition_in_fractions(uploads: list[tuple[int, int, int]]) -> None:
    values = [value for value, _, _ in uploads]
    counts = [count for _, count, _ in uploads]
    weights = [weight for _, _, weight in uploads]
    if not any(weights):
        return
    samples = sum(c * w for _, c, w in uploads)
    weighted = floor(Fraction(sum(v * c * w for v, c, w in uploads), samples))
    assert centre("weighted", values, counts, weights) == weighted
    assert centre("paper", values, counts, weights) == floor(
        Fraction(sum(v * c * w for v, c, w in uploads), samples * sum(w > 0 for w in weights))
    )
    assert centre("mean", values, counts, weights) == floor(
        Fraction(sum(v * w for v, _, w in uploads), sum(weights))
    )
    for rule in ("median", "trimmed"):
        assert centre(rule, values, counts, weights) == expanded(rule, uploads)


@pytest.mark.parametrize("rule", CENTRES)
@given(uploads=UPLOADS, weight=st.integers(1, FULL))
@settings(deadline=None, max_examples=30)
def test_the_same_weight_for_all_changes_nothing(
    rule: str, uploads: list[tuple[int, int, int]], weight: int
) -> None:
    values = [value for value, _, _ in uploads]
    counts = [count for _, count, _ in uploads]
    alike = centre(rule, values, counts, [weight] * len(values))
    assert alike == int(CENTRES[rule](column(values, counts))[0, 0])


def test_the_largest_numbers_of_many_clients_do_not_overflow() -> None:
    """Weighted values add up to 2⁶⁴, which 64 bits with a sign do not hold."""
    clients = 1 << 14
    counts = np.full((clients, 1), MAX_COUNT)
    values = np.full((clients, 1, 1), LIMIT - 1)
    values[0] = 1 - LIMIT
    sent = Uploads(tuple(range(clients)), counts, values)
    found = CENTRES["weighted"](sent)
    assert found[0, 0] == floor(Fraction((clients - 2) * (LIMIT - 1), clients))


# Rules that remember


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "slow", Slow())


def test_a_rule_sees_the_last_centres_and_what_it_remembers() -> None:
    state = start(NoDetection(), "slow", 2, 1, 1)
    assert list(state) == ["rule/rounds"]
    globals_ = Globals.none(1, 1)
    centres = []
    for values in ([100, 120], [900, 900], [0, 0]):
        decision = decide(NoDetection(), "slow", state, globals_, column(values, [1, 1]))
        # As servers agree on it.
        state = codec.decode_state(codec.encode_state(decision.state))
        globals_ = decision.globals_
        centres.append(int(globals_.values_JV[0, 0]))
    assert centres == [110, 120, 100]
    assert state["rule/rounds"].tolist() == [3]


@pytest.mark.parametrize("centres", [np.array([[1.5]]), np.array([1])])
def test_a_rule_returns_a_whole_number_for_each_class_and_value(centres: Ints) -> None:
    class Wrong(Rule):
        def combine(
            self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
        ) -> tuple[State, Ints]:
            return state, centres

    weight_KJ = np.full((1, 1), FULL)
    with pytest.raises(UserError, match=r"Wrong returned centres of .* return int64 \(1, 1\)"):
        aggregate(Wrong(), {}, Globals.none(1, 1), column([1], [1]), weight_KJ)


def test_a_detector_may_bring_its_own_rule_and_weighs_the_uploads() -> None:
    state = start(Halving(), "mean", 2, 1, 1)
    assert sorted(state) == ["rounds", "rule/rounds"]
    found = decide(Halving(), "mean", state, Globals.none(1, 1), column([30, 90], [1, 1]))
    assert found.globals_.values_JV.tolist() == [[(30 * 2 + 90) // 3]]
    assert detector_state(found.state).keys() == {"rounds"}
    assert found.state["rule/rounds"].tolist() == [1]
    assert found.verdict.weight_KJ.tolist() == [[FULL], [FULL // 2]]
    assert [found.verdict.why(row) for row in range(2)] == [
        "",
        "class 0: far from the other holders (weight 50 %)",
    ]
    assert found.verdict.kept_K.all()


def test_a_class_without_weight_keeps_its_last_prototype() -> None:
    last = Globals(np.array([True, True]), np.array([[7], [8]]))
    sent = Uploads((0,), np.array([[1, 1]]), np.array([[[50], [60]]]))
    weight_KJ = np.array([[0, 1]])
    for name in RULES:
        fresh = RULES[name].start(2, 1)
        _, found = aggregate(RULES[name], fresh, last, sent, weight_KJ)
        assert found.values_JV[0].tolist() == [7]
        assert found.values_JV[1].tolist() == combine(last, sent, name).values_JV[1].tolist()


def test_a_verdict_that_breaks_its_promises_is_noticed() -> None:
    sent = Uploads((0, 1), np.array([[1, 0], [1, 1]]), np.zeros((2, 2, 1), np.int64))
    good = Verdict.of_kept(sent, np.array([True, False]), np.zeros(2, np.int64), Reason.FAR)
    assert good.fits(sent)
    assert good.weight_KJ.tolist() == [[FULL, 0], [0, 0]]
    weights = {
        "too much": [[FULL + 1, 0], [0, 0]],
        "negative": [[FULL, 0], [-1, 0]],
        "for nothing": [[FULL, FULL], [0, 0]],
        "less, without a reason": [[FULL - 1, 0], [0, 0]],
    }
    for weight_KJ in weights.values():
        assert not replace(good, weight_KJ=np.array(weight_KJ)).fits(sent)
    unreasonable = np.where(good.reason_KJ > 0, 0, good.reason_KJ)
    assert not replace(good, reason_KJ=unreasonable).fits(sent)
    assert not good.only(np.array([True, False])).fits(sent)

    class Careless(NoDetection):
        def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
            return state, replace(good, weight_KJ=np.array(weights["too much"]))

    with pytest.raises(AssertionError, match="Careless gave a verdict that does not fit"):
        decide(Careless(), "mean", {}, Globals.none(2, 1), sent)


def test_what_has_no_weight_in_a_class_is_not_among_the_kept_uploads_of_it() -> None:
    sent = Uploads((3, 4), np.array([[5, 6], [7, 8]]), np.zeros((2, 2, 1), np.int64))
    weight_KJ = np.array([[0, 1], [0, 0]])
    verdict = Verdict.of_weights(sent, weight_KJ, np.zeros(2, np.int64), Reason.FAR)
    kept = Decision(sent, verdict, {}, Globals.none(2, 1)).kept_uploads()
    assert kept.clients == (3,)
    assert kept.counts_KJ.tolist() == [[0, 6]]
