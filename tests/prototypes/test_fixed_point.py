"""Prototypes on the wire: rounding, the canonical layout, what it refuses, exact aggregation."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.prototypes.class_means import class_means, quantise
from fedrfq.prototypes.fixed_point import (
    FULL_PRECISION,
    LIMIT,
    MAX_BITS,
    MAX_COUNT,
    MIN_BITS,
    Globals,
    Precision,
    Uploads,
    admit,
    decode,
    encode,
    fixed,
    refuses,
    size,
)
from fedrfq.robust.aggregation import combine

ONE = 2**14
HEADER = 18
CLASS = 6
BITS = (8, 16, 24)


def array(rows: Any) -> NDArray[np.int64]:
    return np.array(rows, np.int64)


# Fixed point


def test_values_are_rounded_to_the_nearest() -> None:
    numbers = torch.tensor([[[0.0, 1.0, -1.0, 0.4 / ONE, 0.6 / ONE, -0.6 / ONE, -0.4 / ONE, 1.3]]])
    values, cut, missing = quantise(numbers)
    assert values.tolist() == [[[0, ONE, -ONE, 0, 1, -1, 0, round(1.3 * ONE)]]]
    assert values.dtype == np.int64
    assert (cut.tolist(), missing.tolist()) == ([0], [0])


@pytest.mark.parametrize(
    ("bits", "step", "most"), [(8, 1 / 16, 127 / 16), (16, 1 / 4096, 32767 / 4096)]
)
def test_fewer_bits_are_a_coarser_grid_up_to_eight(bits: int, step: float, most: float) -> None:
    numbers = torch.tensor(
        [[[1.0, -1.0, 0.4 * step, 0.6 * step, -0.6 * step, -0.4 * step, most, 8.0, -8.0]]]
    )
    values, cut, _ = quantise(numbers, Precision(bits))
    assert (values[0, 0] / ONE).tolist() == [1, -1, 0, step, -step, 0, most, most, -most]
    assert cut.tolist() == [2]


def test_numbers_in_fixed_point_are_cut_to_its_range() -> None:
    numbers = np.array([0.5, -0.25, 100.0, -100.0, np.nan, np.inf])
    end = LIMIT - 1
    assert fixed(numbers).tolist() == [2**13, -(2**12), end, -end, 0, end]


def test_values_out_of_range_are_cut_and_counted_by_client() -> None:
    numbers = [[[64.0, -64.0, 1e30]], [[63.9999, -63.9999, 63.99999999]]]
    values, cut, missing = quantise(torch.tensor(numbers, dtype=torch.float64))
    assert values.tolist() == [
        [[LIMIT - 1, 1 - LIMIT, LIMIT - 1]],
        [[LIMIT - 2, 2 - LIMIT, LIMIT - 1]],
    ]
    assert cut.tolist() == [3, 1]
    assert missing.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers_are_counted_by_client(bad: float) -> None:
    values, cut, missing = quantise(torch.tensor([[[1.0, 2.0]], [[1.0, bad]], [[bad, bad]]]))
    assert missing.tolist() == [0, 1, 2]
    assert cut.tolist() == [0, 0, 0]
    assert values[0].tolist() == [[ONE, 2 * ONE]]


def test_the_grids_of_all_bits() -> None:
    """Up to 18 bits they reach up to 8, at half the step for each further bit; then farther."""
    for bits in range(4, 19):
        precision = Precision(bits)
        assert precision.step * (precision.most + 1) == 8 * ONE
        assert precision.step == ONE >> (bits - 4)
    reach = [(p.step, p.most) for p in map(Precision, range(19, 25))]
    assert reach == [(1, 2**18 - 1), (1, 2**19 - 1), *[(1, LIMIT - 1)] * 4]


def test_the_grids() -> None:
    assert [(p.step, p.most) for p in map(Precision, BITS)] == [
        (1024, 127),
        (4, 32767),
        (1, LIMIT - 1),
    ]
    assert [p.step * (p.most + 1) for p in map(Precision, BITS)] == [8 * ONE, 8 * ONE, 64 * ONE]
    for bits in (0, 3, 25, 32):
        with pytest.raises(UserError, match=r"bits must be 4 to 24"):
            Precision(bits)


def test_rounding_to_the_grid_by_hand() -> None:
    """Halves go upward, of negative numbers too: integer division rounds down."""
    values = array([0, 511, 512, 513, 1536, -511, -512, -513, -1536, 127 * 1024, 10**6, -(10**6)])
    expected = [0, 0, 1, 1, 2, 0, 0, -1, -1, 127, 127, -127]
    assert Precision(8).rounded(values).tolist() == [1024 * steps for steps in expected]
    assert Precision(16).rounded(array([1, 2, -2, -3, 5])).tolist() == [0, 4, 0, -4, 4]
    assert Precision(24).rounded(array([1, -1, LIMIT, -LIMIT])).tolist() == [
        1,
        -1,
        LIMIT - 1,
        1 - LIMIT,
    ]


@settings(deadline=None)
@given(st.integers(4, 24), st.lists(st.integers(-2 * LIMIT, 2 * LIMIT), min_size=1, max_size=9))
def test_rounding_finds_a_nearest_value_and_keeps_those_of_the_grid(
    bits: int, numbers: list[int]
) -> None:
    precision = Precision(bits)
    found = precision.rounded(array(numbers))
    grid_end = precision.most * precision.step
    for value, rounded in zip(numbers, found.tolist(), strict=True):
        assert rounded % precision.step == 0
        inside = min(max(value, -grid_end), grid_end)
        assert abs(rounded - inside) * 2 <= precision.step
    assert np.array_equal(precision.rounded(found), found)


def test_class_means_by_hand() -> None:
    p = torch.tensor([[[1.0, 2], [3, 4], [10, 20], [99, 99]], [[5, 6], [7, 8], [9, 10], [11, 12]]])
    y = torch.tensor([[0, 0, 2, 0], [1, 1, 1, 1]])
    weight = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0]])
    means, counts = class_means(p, y, weight, 3)
    assert counts.tolist() == [[2, 0, 1], [0, 2, 0]]
    assert means.tolist() == [[[2, 3], [0, 0], [10, 20]], [[0, 0], [6, 7], [0, 0]]]


# On the wire

numbers = st.integers(1 - LIMIT, LIMIT - 1)
all_bits = st.integers(MIN_BITS, MAX_BITS)
Sent = tuple[int, int, NDArray[np.int64], NDArray[np.int64], Precision]


@st.composite
def uploads(draw: st.DrawFn) -> Sent:
    precision = Precision(draw(all_bits))
    classes = draw(st.integers(1, 6))
    length = draw(st.integers(1, 5))
    counts = draw(
        st.lists(st.just(0) | st.integers(1, MAX_COUNT), min_size=classes, max_size=classes)
    )
    steps = st.lists(st.integers(-precision.most, precision.most), min_size=length, max_size=length)
    rows = [draw(steps) if count else [0] * length for count in counts]
    round_ = draw(st.integers(0, 2**32 - 1))
    client = draw(st.integers(0, 2**32 - 1))
    return round_, client, array(counts), array(rows) * precision.step, precision


@settings(deadline=None)
@given(uploads())
def test_what_is_encoded_is_decoded(sent: Sent) -> None:
    round_, client, counts, values, precision = sent
    message = encode(*sent)
    row = CLASS + -(-precision.bits * values.shape[1] // 8)
    assert len(message) == HEADER + int((counts > 0).sum()) * row
    found = decode(message, values.shape[0], values.shape[1], precision)
    assert found[:2] == (round_, client)
    assert np.array_equal(found[2], counts)
    assert np.array_equal(found[3], values)
    assert found[2].dtype == found[3].dtype == np.int64


@settings(deadline=None)
@given(uploads(), st.data())
def test_a_message_of_another_length_is_refused(sent: Sent, data: st.DataObject) -> None:
    message = encode(*sent)
    (classes, length) = sent[3].shape
    precision = sent[4]
    for changed in (
        message[: data.draw(st.integers(0, len(message) - 1))],
        message + data.draw(st.binary(min_size=1)),
    ):
        with pytest.raises(UserError, match="bytes"):
            decode(changed, classes, length, precision)


@settings(deadline=None)
@given(uploads(), st.data())
def test_bytes_that_are_accepted_are_canonical(sent: Sent, data: st.DataObject) -> None:
    """Whichever byte is altered, it is refused, or the canonical encoding of something else."""
    message = bytearray(encode(*sent))
    (classes, length) = sent[3].shape
    precision = sent[4]
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(message), classes, length, precision)
    except UserError:
        return
    assert encode(*found, precision) == bytes(message)


@settings(deadline=None)
@given(uploads(), st.data())
def test_what_is_refused_is_what_cannot_be_decoded(sent: Sent, data: st.DataObject) -> None:
    message = bytearray(encode(*sent))
    (classes, length) = sent[3].shape
    precision = sent[4]
    for at in data.draw(st.lists(st.integers(0, len(message) - 1), max_size=2)):
        message[at] = data.draw(st.integers(0, 255))
    try:
        right = decode(bytes(message), classes, length, precision)[:2] == sent[:2]
    except UserError:
        right = False
    assert (
        refuses(*sent[:2], bytes(message), classes, length, precision=precision) is None
    ) == right


@settings(deadline=None)
@given(uploads(), all_bits)
def test_a_message_of_other_bits_is_refused(sent: Sent, bits: int) -> None:
    classes, length = sent[3].shape
    if bits != sent[4].bits:
        with pytest.raises(UserError, match=f"of {bits} bits"):
            decode(encode(*sent), classes, length, Precision(bits))


MESSAGE = encode(7, 3, array([2, 0, 5]), array([[1, -1], [0, 0], [LIMIT - 1, 1 - LIMIT]]))


def test_the_bytes_by_hand() -> None:
    first = struct.pack("<HI", 0, 2) + b"\x01\x00\x00" + b"\xff\xff\xff"
    second = struct.pack("<HI", 2, 5) + b"\xff\xff\x0f" + b"\x01\x00\xf0"
    header = b"FRFQ" + struct.pack("<BBIIHH", 2, 24, 7, 3, 2, 2)
    assert header + first + second == MESSAGE


def test_the_bytes_of_fewer_bits_by_hand() -> None:
    """Numbers of steps, two bytes or one, two's complement."""
    sent = 7, 3, array([2, 0]), array([[4 * 258, -4], [0, 0]])
    whole = (
        b"FRFQ"
        + struct.pack("<BBIIHH", 2, 16, 7, 3, 1, 2)
        + struct.pack("<HI", 0, 2)
        + b"\x02\x01\xff\xff"
    )
    assert encode(*sent, Precision(16)) == whole
    sent = 7, 3, array([2, 0]), array([[1024 * 127, -1024], [0, 0]])
    whole = (
        b"FRFQ" + struct.pack("<BBIIHH", 2, 8, 7, 3, 1, 2) + struct.pack("<HI", 0, 2) + b"\x7f\xff"
    )
    assert encode(*sent, Precision(8)) == whole


def test_the_bytes_of_bits_that_are_no_bytes_by_hand() -> None:
    """The lowest bits come first, and zeros fill the last byte: 7, −7 and 1 at four bits."""
    header = b"FRFQ" + struct.pack("<BBIIHH", 2, 4, 7, 3, 1, 3) + struct.pack("<HI", 0, 2)
    sent = 7, 3, array([2]), array([[7, -7, 1]]) * ONE
    # 0111, then 1001 above it; then 0001 and the filling.
    assert encode(*sent, Precision(4)) == header + b"\x97\x01"
    header = b"FRFQ" + struct.pack("<BBIIHH", 2, 12, 7, 3, 1, 3) + struct.pack("<HI", 0, 2)
    sent = 7, 3, array([2]), array([[0x7FF, -1, 0x123]]) * 64
    assert encode(*sent, Precision(12)) == header + b"\xff\xf7\xff\x23\x01"


@settings(deadline=None)
@given(uploads(), st.data())
def test_bits_after_the_last_value_of_a_row_are_zero(sent: Sent, data: st.DataObject) -> None:
    round_, client, counts, values, precision = sent
    spare = -precision.bits * values.shape[1] % 8
    if not counts.any() or not spare:
        return
    message = bytearray(encode(*sent))
    bit = data.draw(st.integers(8 - spare, 7))
    message[-1] ^= 1 << bit
    with pytest.raises(UserError, match="after the last value"):
        decode(bytes(message), *values.shape, precision)
    assert client in admit(round_, {client: bytes(message)}, *values.shape, precision).refused


@pytest.mark.parametrize("bits", [4, 8, 24])
def test_an_upload_without_classes_is_admitted(bits: int) -> None:
    precision = Precision(bits)
    message = encode(7, 3, array([0, 0]), array([[0], [0]]), precision)
    assert refuses(7, 3, message, 2, 1, precision=precision) is None
    assert len(message) == HEADER == size(array([0]), 1, precision)
    admitted = admit(7, {3: message}, 2, 1, precision)
    assert (admitted.clients, admitted.counts_KJ.tolist()) == ((3,), [[0, 0]])


def altered(at: int, new: bytes) -> bytes:
    return MESSAGE[:at] + new + MESSAGE[at + len(new) :]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(MESSAGE[: HEADER - 1], id="part of a header"),
        pytest.param(MESSAGE + b"\0", id="a byte more"),
        pytest.param(altered(0, b"FRFP"), id="magic"),
        pytest.param(altered(4, b"\x01"), id="version"),
        pytest.param(altered(5, b"\x10"), id="bits"),
        pytest.param(altered(14, b"\x01"), id="fewer classes than follow"),
        pytest.param(altered(14, b"\x03"), id="more classes than follow"),
        pytest.param(altered(14, b"\xff\xff"), id="more classes than there are"),
        pytest.param(altered(16, b"\x03"), id="another length of prototypes"),
        pytest.param(altered(HEADER, b"\x02"), id="a class twice"),
        pytest.param(altered(HEADER + CLASS + 6, b"\x00"), id="the first class twice"),
        pytest.param(altered(HEADER + CLASS + 6, b"\x03"), id="unknown class"),
        pytest.param(
            altered(HEADER + CLASS + 6, b"\xff\xff"), id="unknown class at the end of the range"
        ),
        pytest.param(altered(HEADER + 2, b"\x00\x00\x00\x00"), id="no samples"),
        pytest.param(altered(HEADER + 2, b"\x01\x00\x10\x00"), id="2²⁰ + 1 samples"),
        pytest.param(altered(HEADER + CLASS, b"\x00\x00\x10"), id="a value of 2²⁰"),
        pytest.param(altered(HEADER + CLASS, b"\x00\x00\xf0"), id="a value of −2²⁰"),
        pytest.param(altered(HEADER + CLASS, b"\x00\x00\x80"), id="the least of 24 bits"),
        pytest.param(
            MESSAGE[:HEADER] + MESSAGE[HEADER + 12 :] + MESSAGE[HEADER : HEADER + 12],
            id="out of order",
        ),
    ],
)
def test_malformed_messages_are_refused_on_one_line(message: bytes) -> None:
    decode(MESSAGE, 3, 2)
    with pytest.raises(UserError) as caught:
        decode(message, 3, 2)
    assert "\n" not in str(caught.value)
    for end in (
        b"\x01\x00\xf0",
        b"\x01\x00\xf1",
    ):  # with a value near the end of the range, and with none
        assert refuses(7, 3, MESSAGE[:-3] + end, 3, 2, precision=FULL_PRECISION) is None
        assert refuses(
            7, 3, message.replace(b"\x01\x00\xf0", end), 3, 2, precision=FULL_PRECISION
        ) == str(caught.value)


@pytest.mark.parametrize("bits", BITS)
def test_the_lowest_value_of_so_many_bits_is_refused(bits: int) -> None:
    precision = Precision(bits)
    least = encode(7, 3, array([2]), array([[-precision.most * precision.step]]), precision)
    assert refuses(7, 3, least, 1, 1, precision=precision) is None
    lower = (-precision.most - 1).to_bytes(bits // 8, "little", signed=True)
    assert "outside the fixed-point range" in str(
        refuses(7, 3, least[: -len(lower)] + lower, 1, 1, precision=precision)
    )


def test_a_message_of_more_classes_than_can_be_said_is_refused() -> None:
    assert (
        refuses(7, 3, bytes(HEADER + 70_000 * (CLASS + 3)), 3, 1, precision=FULL_PRECISION)
        is not None
    )


def test_a_message_for_other_shapes_is_refused() -> None:
    for classes, values in ((3, 3), (3, 1), (2, 2), (1, 2)):
        with pytest.raises(UserError):
            decode(MESSAGE, classes, values)
    assert decode(MESSAGE, 30, 2)[2].tolist() == [2, 0, 5] + [0] * 27


def test_traffic_is_counted_as_the_papers_tables_do() -> None:
    """Table 1: 20 clients of 4 classes send 24 values each."""
    counts = array([[100] * 4 + [0] * 6] * 20)
    sent = Uploads(tuple(range(20)), counts, np.zeros((20, 10, 24), np.int64))
    assert sent.parameters() == 1920
    messages = sent.encoded(5)
    assert [len(message) for message in messages] == [HEADER + 4 * (CLASS + 72)] * 20
    assert sent.length() == sum(map(len, messages))
    assert replace(sent, precision=Precision(8)).length() == 20 * (HEADER + 4 * (CLASS + 24))
    assert [decode(message, 10, 24)[:2] for message in messages] == [
        (5, client) for client in range(20)
    ]


# Aggregation

SENT = Uploads(
    (0, 1, 2),
    array([[3, 0, 1, 0], [1, 2, 0, 0], [0, 5, 0, 0]]),
    array(
        [
            [[10, -7], [0, 0], [-3, 4], [0, 0]],
            [[21, -8], [7, -1], [0, 0], [0, 0]],
            [
                [99, 99],
                [-6, 0],
                [0, 0],
                [0, 0],
            ],  # what it says of classes it does not hold counts for nothing
        ]
    ),
)
BEFORE = Globals(np.array([True, False, False, True]), array([[1, 1], [2, 2], [3, 3], [4, 4]]))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # class 0: (3·10 + 21) / 4 = 12.75, (−21 − 8) / 4 = −7.25
        # class 1: (14 − 30) / 7 = −2.29, −2/7
        ("weighted", [[12, -8], [-3, -1], [-3, 4], [4, 4]]),
        # class 0: 31/2, −15/2; class 1: 1/2, −1/2
        ("mean", [[15, -8], [0, -1], [-3, 4], [4, 4]]),
        # once more by the two holders: 51/8, −29/8; −16/14, −2/14
        ("paper", [[6, -4], [-2, -1], [-3, 4], [4, 4]]),
    ],
)
def test_combining_by_hand(rule: str, expected: list[list[int]]) -> None:
    found = combine(BEFORE, SENT, rule)
    assert found.values_JV.tolist() == expected
    assert found.present_J.tolist() == [True, True, True, True]
    assert found.values_JV.dtype == np.int64


def test_a_class_nobody_sent_keeps_its_last_prototype_or_has_none() -> None:
    nobody = Uploads((0,), array([[0, 0, 0, 0]]), array([[[9, 9]] * 4]))
    found = combine(BEFORE, nobody, "weighted")
    assert found.present_J.tolist() == BEFORE.present_J.tolist()
    assert found.values_JV[[0, 3]].tolist() == [[1, 1], [4, 4]]
    no_one = Uploads((), np.zeros((0, 4), np.int64), np.zeros((0, 4, 2), np.int64))
    assert combine(BEFORE, no_one, "mean").values_JV[[0, 3]].tolist() == [[1, 1], [4, 4]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, MAX_COUNT), numbers), min_size=1, max_size=8), st.randoms()
)
def test_combining_is_exact_and_no_order_changes_a_byte(
    sent: list[tuple[int, int]], random: Any
) -> None:
    def combined(rule: str, rows: list[tuple[int, int]]) -> Globals:
        counts = array([[count] for count, _ in rows])
        values = array([[[value]] for _, value in rows])
        return combine(Globals.none(1, 1), Uploads(tuple(range(len(rows))), counts, values), rule)

    holders = [(count, value) for count, value in sent if count]
    weight = sum(count for count, _ in holders)
    number = len(holders)
    exact = {
        "weighted": Fraction(sum(count * value for count, value in holders), weight or 1),
        "mean": Fraction(sum(value for _, value in holders), number or 1),
        "paper": Fraction(sum(count * value for count, value in holders), weight * number or 1),
    }
    shuffled = random.sample(sent, len(sent))
    for rule, value in exact.items():
        found = combined(rule, sent)
        again = combined(rule, shuffled)
        assert found.values_JV[0, 0] == floor(value)
        assert found.present_J[0] == bool(holders)
        assert found.values_JV.tobytes() == again.values_JV.tobytes()


def test_globals_as_floats() -> None:
    found = Globals(np.array([True, False]), array([[ONE, -ONE // 2], [0, 0]]))
    assert found.floats().tolist() == [[1.0, -0.5], [0.0, 0.0]]
    assert found.floats().dtype == np.float32
    assert found.parameters() == 2
    assert Globals.none(3, 4).parameters() == 0
    assert Globals.none(3, 4).values_JV.shape == (3, 4)
