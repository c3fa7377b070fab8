"""What every server decides about a round's uploads: who is refused, who is kept, what follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import (
    LIMIT,
    MAX_COUNT,
    Globals,
    Precision,
    Uploads,
    admit,
    encode,
)
from fedrfq.robust.aggregation import combine, decide
from fedrfq.robust.centres import CENTRES, FULL
from fedrfq.robust.detectors import DETECTORS, Detector, State, Verdict
from fedrfq.robust.detectors.none import NoDetection

Ints = NDArray[np.int64]


def array(rows: Any) -> Ints:
    return np.array(rows, np.int64)


@dataclass(frozen=True)
class Drop(Detector):
    """Drops one client, scores by client, and counts its calls."""

    exact = True
    client: int = 0
    clip: bool = False

    def start(self, clients: int) -> State:
        return {"calls": array([0])}

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        rows = array(uploads.clients)
        return {"calls": state["calls"] + 1}, Verdict.of_kept(
            uploads, rows != self.client, 10 * rows
        )


def three(precision: Precision = Precision()) -> Uploads:  # noqa: B008
    """Clients 3, 5 and 8, of two classes and two values."""
    counts = array([[2, 0], [1, 4], [1, 1]])
    values = array([[[4, 8], [0, 0]], [[-4, 0], [8, 12]], [[8, 8], [0, 4]]]) * precision.step
    return Uploads((3, 5, 8), counts, values, precision=precision)


NONE = Globals.none(2, 2)
KNOWN = Globals(np.array([True, True]), array([[100, 100], [200, 200]]))


# Uploads that cannot be taken


def spoilt(uploads: Uploads, row: int, what: str, number: int) -> Uploads:
    counts = uploads.counts_KJ.copy()
    values = uploads.values_KJV.copy()
    if what == "count":
        counts[row, 1] = number
    else:
        values[row, 1, 0] = number
    return replace(uploads, counts_KJ=counts, values_KJV=values)


@pytest.mark.parametrize("bits", [8, 16, 24])
@pytest.mark.parametrize(
    ("what", "number", "reason"),
    [
        ("value", lambda p: (p.most + 1) * p.step, "outside the fixed-point range"),
        ("value", lambda p: -(p.most + 1) * p.step, "outside the fixed-point range"),
        ("value", lambda p: 2**62, "outside the fixed-point range"),
        ("value", lambda p: -(2**63), "outside the fixed-point range"),
        ("count", lambda p: -1, "-1 samples"),
        ("count", lambda p: -(2**63), "samples, outside 0 to"),
        ("count", lambda p: MAX_COUNT + 1, f"{MAX_COUNT + 1} samples, outside 0 to {MAX_COUNT}"),
    ],
)
def test_who_sends_what_no_message_carries_is_left_out_and_told_why(
    what: str, number: Callable[[Precision], int], reason: str, bits: int
) -> None:
    """The others count as if it had not been there; an earlier refusal stays."""
    precision = Precision(bits)
    sent = replace(spoilt(three(precision), 1, what, number(precision)), refused={9: "no numbers"})
    found = decide(NoDetection(), "weighted", {}, KNOWN, sent)
    assert found.uploads.clients == (3, 8)
    assert found.uploads.refused[9] == "no numbers"
    assert reason in found.uploads.refused[5]
    assert set(found.uploads.refused) == {5, 9}
    assert len(found.verdict.kept_K) == len(found.verdict.score_K) == 2
    others = decide(
        NoDetection(), "weighted", {}, KNOWN, three(precision).only(np.array([True, False, True]))
    )
    assert np.array_equal(found.globals_.values_JV, others.globals_.values_JV)


@pytest.mark.parametrize("bits", [8, 16])
def test_values_between_those_of_the_grid_are_refused(bits: int) -> None:
    precision = Precision(bits)
    sent = spoilt(three(precision), 0, "value", precision.step + 1)
    assert "grid" in sent.checked().refused[3]
    assert sent.checked().clients == (5, 8)


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_the_largest_numbers_a_message_carries_are_taken(bits: int) -> None:
    precision = Precision(bits)
    sent = three(precision)
    for what, number in (
        ("value", precision.most * precision.step),
        ("value", -precision.most * precision.step),
    ):
        sent = spoilt(sent, 1, what, number)
        assert sent.checked().clients == (3, 5, 8)
        assert sent.checked().refused == {}
        encoded = sent.encoded(1)
        assert admit(1, dict(zip(sent.clients, encoded, strict=True)), 2, 2, precision).clients == (
            3,
            5,
            8,
        )
    assert spoilt(sent, 1, "count", MAX_COUNT).checked().clients == (3, 5, 8)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_round_in_which_nothing_can_be_taken_keeps_what_there_was(name: str) -> None:
    sent = three()
    wrong = replace(sent, values_KJV=sent.values_KJV + LIMIT)
    detector = DETECTORS[name]()
    found = decide(detector, "weighted", detector.start(9), KNOWN, wrong)
    assert found.uploads.clients == ()
    assert set(found.uploads.refused) == {3, 5, 8}
    assert np.array_equal(found.globals_.values_JV, KNOWN.values_JV)
    assert found.globals_.present_J.tolist() == [True, True]


# Verdicts


def test_who_is_dropped_does_not_count_and_the_verdict_is_kept() -> None:
    found = decide(Drop(client=5), "mean", {"calls": array([7])}, NONE, three())
    assert found.uploads.clients == (3, 5, 8)
    assert found.verdict.kept_K.tolist() == [True, False, True]
    assert found.verdict.score_K.tolist() == [30, 50, 80]
    assert found.state["calls"].tolist() == [8]
    assert found.globals_.values_JV.tolist() == [[6, 8], [0, 4]]


def test_a_class_that_loses_all_its_clients_keeps_its_last_global_prototype() -> None:
    sent = three().only(np.array([True, True, False]))  # class 1 is client 5's alone
    found = decide(Drop(client=5), "weighted", {"calls": array([0])}, KNOWN, sent)
    assert found.globals_.values_JV.tolist() == [[4, 8], [200, 200]]
    assert found.globals_.present_J.tolist() == [True, True]
    never = decide(Drop(client=5), "weighted", {"calls": array([0])}, NONE, sent)
    assert never.globals_.present_J.tolist() == [True, False]


def test_counts_are_those_that_senders_may_claim() -> None:
    """Counts are cut to what is usual; a lone class held back counts for nothing."""
    sent = spoilt(three(), 1, "count", 1000)
    found = decide(Drop(client=9, clip=True), "weighted", {"calls": array([0])}, NONE, sent)
    # One of three may be malicious: the second largest claim, 2 in all, is what a client may have.
    assert found.uploads.counts_KJ.tolist() == [[2, 0], [1, 1], [1, 1]]
    assert found.globals_.values_JV.tolist() == [[3, 6], [4, 8]]
    assert [found.verdict.why(row) for row in range(3)] == [
        "",
        "class 1: claims more samples than may count",
        "",
    ]
    assert (found.verdict.weight_KJ[found.verdict.sent_KJ] == FULL).all()
    alone = sent.only(np.array([True, True, False]))
    held = decide(Drop(client=9, lone="hold"), "weighted", {"calls": array([0])}, KNOWN, alone)
    assert held.globals_.values_JV.tolist() == [[4 // 3, 16 // 3], [200, 200]]
    assert held.verdict.why(1) == "class 1: nobody else holds the class (weight 0 %)"
    assert held.verdict.kept_K.all()
    sole = alone.only(np.array([False, True]))
    nothing_left = decide(Drop(client=9, lone="hold"), "mean", {"calls": array([0])}, KNOWN, sole)
    assert nothing_left.verdict.kept_K.tolist() == [False]
    assert nothing_left.globals_.values_JV.tolist() == KNOWN.values_JV.tolist()


@pytest.mark.parametrize("bits", [8, 16])
def test_global_prototypes_are_on_the_grid(bits: int) -> None:
    """The mean of 1 and 2 steps is rounded to 2, of −1 and −2 to −1: halves upward."""
    precision = Precision(bits)
    values = array([[[1, -1]], [[2, -2]]]) * precision.step
    sent = Uploads((0, 1), array([[1], [1]]), values, precision=precision)
    found = combine(Globals.none(1, 2), sent, "mean")
    assert found.values_JV.tolist() == [[2 * precision.step, -precision.step]]


# Robust rules, by plain loops


def plain(rule: str, column: list[int]) -> int:
    ordered = sorted(column)
    n = len(ordered)
    if rule == "median":
        if n % 2:
            left = [ordered[n // 2]]
        else:
            left = [ordered[n // 2 - 1], ordered[n // 2]]
    else:
        left = ordered[n // 3 : n - n // 3]
    return floor(Fraction(sum(left), len(left)))


@pytest.mark.parametrize(
    ("rule", "column", "expected"),
    [
        ("median", [5], 5),
        ("median", [5, 8], 6),
        ("median", [-5, -8], -7),  # −6.5, rounded down
        ("median", [9, -100, 3], 3),
        ("median", [1, 2, 30, 1000], 16),
        ("trimmed", [5], 5),
        ("trimmed", [5, 8], 6),
        ("trimmed", [9, -100, 3], 3),
        ("trimmed", [1, 2, 30, 1000], 16),
        ("trimmed", [-7, 1, 2, 4, 5, 900], 3),
        ("trimmed", [-7, -1, -2, -4, -5, -900, -3], -4),  # of −5, −4, −3
    ],
)
def test_robust_rules_by_hand(rule: str, column: list[int], expected: int) -> None:
    sent = Uploads(
        tuple(range(len(column))),
        array([[1]] * len(column)),
        array([[[value]] for value in column]),
    )
    assert CENTRES[rule](sent).tolist() == [[expected]]
    assert plain(rule, column) == expected


@settings(deadline=None)
@given(
    st.sampled_from(["median", "trimmed"]),
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(1 - LIMIT, LIMIT - 1), st.integers(1 - LIMIT, LIMIT - 1)
        ),
        min_size=1,
        max_size=9,
    ),
    st.randoms(use_true_random=False),
)
def test_robust_rules_are_the_plain_loops_in_any_order(
    rule: str, rows: list[tuple[int, int, int]], shuffler: random.Random
) -> None:
    """Whatever the counts; what is said of classes not held does not matter."""

    def found(given_: list[tuple[int, int, int]]) -> Globals:
        counts = array([[count] for count, *_ in given_])
        values = array([[row] for _, *row in given_])
        return combine(
            Globals(np.array([True]), array([[7, 7]])),
            Uploads(tuple(range(len(given_))), counts, values),
            rule,
        )

    holders = [row for row in rows if row[0]]
    if holders:
        expected = [plain(rule, [row[v] for row in holders]) for v in (1, 2)]
    else:
        expected = [7, 7]
    assert found(rows).values_JV.tolist() == [expected]
    assert found(shuffler.sample(rows, len(rows))).values_JV.tolist() == [expected]


# Messages


def messages(uploads: Uploads, round_: int = 4) -> dict[int, bytes]:
    return dict(zip(uploads.clients, uploads.encoded(round_), strict=True))


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_well_formed_messages_are_the_uploads(bits: int) -> None:
    sent = three(Precision(bits))
    found = admit(4, dict(reversed(messages(sent).items())), 2, 2, sent.precision)
    assert found.clients == (3, 5, 8)
    assert np.array_equal(found.counts_KJ, sent.counts_KJ)
    assert np.array_equal(found.values_KJV, sent.values_KJV)
    assert (found.refused, found.precision) == ({}, sent.precision)
    assert found.checked().clients == (3, 5, 8)


HEADER = 18
CLASS = 6


def altered(message: bytes, at: int, new: bytes) -> bytes:
    return message[:at] + new + message[at + len(new) :]


GOOD = messages(three())[5]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(b"", "0 bytes is shorter than its header of 18", id="nothing"),
        pytest.param(GOOD[:-1], "an upload of 2 classes has 42 bytes, this one 41", id="truncated"),
        pytest.param(
            GOOD + b"\x00", "an upload of 2 classes has 42 bytes, this one 43", id="too long"
        ),
        pytest.param(altered(GOOD, 5, b"\x08"), "2 values of 24 bits", id="other bits"),
        pytest.param(altered(GOOD, 4, b"\x01"), "not an upload of version 2", id="other version"),
        pytest.param(altered(GOOD, 16, b"\x03"), "2 values of 24 bits", id="other length"),
        pytest.param(
            altered(GOOD, HEADER + CLASS + 6, b"\x02"), "class 2 with 4 samples", id="unknown class"
        ),
        pytest.param(altered(GOOD, HEADER + 2, b"\x00"), "class 0 with 0 samples", id="no samples"),
        pytest.param(
            altered(GOOD, HEADER + 2, b"\xff" * 4),
            "class 0 with 4294967295 samples",
            id="absurd count",
        ),
        pytest.param(
            altered(GOOD, HEADER + CLASS, b"\x00\x00\x10"),
            "outside the fixed-point range",
            id="2²⁰",
        ),
        pytest.param(
            encode(3, 5, array([1, 1]), array([[1, 1], [1, 1]])),
            "round 3 and client 5, not of",
            id="other round",
        ),
        pytest.param(
            encode(4, 8, array([1, 1]), array([[1, 1], [1, 1]])),
            "client 8, not of round 4 and",
            id="other client",
        ),
    ],
)
def test_malformed_messages_are_refused_and_the_round_goes_on(message: bytes, reason: str) -> None:
    found = admit(4, {**messages(three()), 5: message}, 2, 2, Precision())
    assert found.clients == (3, 8)
    assert reason in found.refused[5]
    assert list(found.refused) == [5]
    assert "\n" not in found.refused[5]
    assert np.array_equal(found.values_KJV, three().values_KJV[[0, 2]])
    assert decide(NoDetection(), "mean", {}, NONE, found).uploads.refused == found.refused


def test_a_round_without_a_single_good_message() -> None:
    for given_ in ({}, {1: b"junk", 2: b""}):
        found = admit(1, given_, 3, 4, Precision(8))
        assert (found.clients, found.counts_KJ.shape, found.values_KJV.shape) == (
            (),
            (0, 3),
            (0, 3, 4),
        )
        assert set(found.refused) == set(given_)
        after = decide(NoDetection(), "median", {}, Globals.none(3, 4), found)
        assert not after.globals_.present_J.any()


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 5), st.binary(max_size=80)), st.sampled_from([8, 16, 24]))
def test_no_bytes_bring_the_servers_down(given_: dict[int, bytes], bits: int) -> None:
    found = admit(1, given_, 3, 4, Precision(bits))
    assert set(found.clients) | set(found.refused) == set(given_)
    decide(NoDetection(), "trimmed", {}, Globals.none(3, 4), found)
