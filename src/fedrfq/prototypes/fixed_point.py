"""Prototypes as they are exchanged: fixed-point integers, so that every sum over them is exact.

A value v is the integer q = round(v · 2¹⁴), with |q| < 2²⁰ (so |v| < 64). Honest machines then
agree to the bit on what they aggregate, whatever their hardware (floating-point sums would differ),
and a server can check the range of what it gets. Fewer bits per value make a coarser grid on the
same scale, and a shorter message.

An upload is a header, then for each class the client holds, in ascending order: the class, the
number of samples, and the values, all little-endian. Values are packed bit by bit, the lowest
first; zero bits fill the last byte of a row.

The rows of an upload need not be classes: statistics on a public feature map travel in the same
form, with rows of second moments after those of the classes (`norm_bound.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import lt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.prototypes.noise_scale import NoiseScale

FRACTION_BITS = 14
# Every |q| stays below it.
LIMIT = 2**20
# The most values of a prototype: the header counts them in 16 bits.
MAX_VALUES = 2**16 - 1
# Bits of a value in a message.
MIN_BITS = 4
MAX_BITS = 24
# The most samples of a class that a client may claim.
MAX_COUNT = 2**20
# Magic, version, bits per value, round, client, number of classes, values per class.
_HEADER = struct.Struct("<4sBBIIHH")
# Class, count.
_CLASS = struct.Struct("<HI")
_MAGIC = b"FRFQ"
_VERSION = 2
# The most bits of a grid that reaches up to 8; with more, it reaches farther at the same step.
_FINEST = FRACTION_BITS + 4
# By bits, the highest bytes of values that are in range whatever their other bytes are. A value
# with another highest byte may still be in range. Other numbers of bits are not whole bytes.
_TOPS = {
    8: bytes({*range(256)} - {128}),
    16: bytes({*range(256)} - {128}),
    24: bytes([*range(16), *range(241, 256)]),
}

# Bytes of an upload without any class.
EMPTY_BYTES = _HEADER.size

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Words = NDArray[np.int32]
Rows = NDArray[np.void]


@dataclass(frozen=True)
class Precision:
    """The grid of the values: multiples of `step`, up to `most` steps in either direction."""

    bits: int = 24

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not MIN_BITS <= self.bits <= MAX_BITS:
            raise UserError(f"bits must be {MIN_BITS} to {MAX_BITS}, not {self.bits}")

    @property
    def step(self) -> int:
        """Return the distance of neighbouring values, as an integer q.

        4 bits are whole numbers up to 7, 8 bits are sixteenths up to 8, 16 bits are 4096ths up to
        8, 18 bits are the finest step up to 8, and 21 bits or more are the whole range.
        """
        return 1 << max(_FINEST - self.bits, 0)

    @property
    def most(self) -> int:
        """Return the largest value, in steps."""
        return int(min(2 ** (self.bits - 1), LIMIT)) - 1

    def rounded(self, values: Ints) -> Ints:
        """Return the nearest values of the grid; halves are rounded up."""
        steps: Ints = np.clip((values + self.step // 2) // self.step, -self.most, self.most)
        return steps * self.step


FULL_PRECISION = Precision()


def fixed(values: NDArray[np.float64]) -> Ints:
    """Return numbers in fixed point, cut to its range; what is not a number becomes 0."""
    scaled = np.nan_to_num(np.rint(values * 2.0**FRACTION_BITS))
    cut: Ints = np.clip(scaled, 1 - LIMIT, LIMIT - 1).astype(np.int64)
    return cut


class Bound(Protocol):
    """A further condition on the counts and values of an upload."""

    def problem(self, counts_J: Ints, values_JV: Ints) -> str | None:
        """Return why these rows are refused, or None if they are not; rows not sent are 0."""
        ...


@dataclass(frozen=True)
class Uploads:
    """What the clients upload in a round: a row for each client."""

    clients: tuple[int, ...]
    counts_KJ: Ints  # samples of each class; 0: not held
    values_KJV: Ints  # P̄ of each class, quantised
    saturated: int = 0  # values that had to be cut to the fixed-point range
    # Clients whose message could not be admitted, and why; they have no row.
    refused: Mapping[int, str] = field(default_factory=dict)
    precision: Precision = FULL_PRECISION
    # Clients that sent statistics to replace their last ones, and what they sent; their rows are 0.
    replaced: Mapping[int, bytes] = field(default_factory=dict)
    noise: NoiseScale | None = None  # of the noise that honest clients added; None without

    @property
    def held_KJ(self) -> Bools:
        """Return which classes each client sent a prototype of."""
        held: Bools = self.counts_KJ > 0
        return held

    def parameters(self) -> int:
        """Return the values that all clients upload together, as the paper's tables count them."""
        return int(self.held_KJ.sum() * self.values_KJV.shape[2])

    def length(self) -> int:
        """Return the length of all messages together, in bytes."""
        replaced = sum(len(content) - _HEADER.size for content in self.replaced.values())
        return size(self.held_KJ.sum(1), self.values_KJV.shape[2], self.precision) + replaced

    def encoded(self, round_: int) -> list[bytes]:
        """Return each client's message in its canonical layout."""
        rows = zip(self.clients, self.counts_KJ, self.values_KJV, strict=True)
        return [
            self.replaced.get(client) or encode(round_, client, counts, values, self.precision)
            for client, counts, values in rows
        ]

    def only(self, keep_K: Bools) -> Uploads:
        """Return the uploads of some clients."""
        if keep_K.all():
            return self
        clients = tuple(client for client, keep in zip(self.clients, keep_K, strict=True) if keep)
        return replace(
            self,
            clients=clients,
            counts_KJ=self.counts_KJ[keep_K],
            values_KJV=self.values_KJV[keep_K],
        )

    def replacing(self, replaced: Mapping[int, bytes]) -> Uploads:
        """Return the uploads with those of some clients exchanged for what they sent instead.

        Who replaces statistics has sent no class of this round.
        """
        if not replaced:
            return self
        others = self.only(~np.isin(self.clients, tuple(replaced)))
        clients_K = np.array([*others.clients, *replaced], np.int64)
        order_K = clients_K.argsort()
        added = ((0, len(replaced)), (0, 0), (0, 0))
        return replace(
            others,
            clients=tuple(clients_K[order_K].tolist()),
            counts_KJ=np.pad(others.counts_KJ, added[:2])[order_K],
            values_KJV=np.pad(others.values_KJV, added)[order_K],
            replaced=replaced,
        )

    def checked(self, bound: Bound | None = None) -> Uploads:
        """Return the uploads less those of clients whose numbers no message can carry.

        With a bound, what exceeds it is refused too.
        """
        if self._all_valid():
            return self._within_bound(bound)
        step = self.precision.step
        end = self.precision.most * step
        counts_KJ = self.counts_KJ
        values_KJV = self.values_KJV
        valid_K = counts_KJ.min(1, initial=0) >= 0
        valid_K &= counts_KJ.max(1, initial=0) <= MAX_COUNT
        valid_K &= values_KJV.min((1, 2), initial=0) >= -end
        valid_K &= values_KJV.max((1, 2), initial=0) <= end
        if step > 1:
            valid_K &= ~(values_KJV % step).any((1, 2))
        wrong = {self.clients[row]: self._reason(row) for row in np.flatnonzero(~valid_K).tolist()}
        valid = replace(self.only(valid_K), refused={**self.refused, **wrong})
        return valid._within_bound(bound)

    def _within_bound(self, bound: Bound | None) -> Uploads:
        """Return the uploads less those that exceed the bound, if there is one."""
        if bound is None:
            return self
        # Client by client, because a copy of all values may be large.
        rows = zip(self.counts_KJ, self.held_KJ, self.values_KJV, strict=True)
        problems = [
            bound.problem(counts_J, values_JV * held_J[:, None])
            for counts_J, held_J, values_JV in rows
        ]
        wrong = {
            client: problem
            for client, problem in zip(self.clients, problems, strict=True)
            if problem is not None
        }
        within_K = np.array([problem is None for problem in problems], np.bool_)
        return replace(self.only(within_K), refused={**self.refused, **wrong})

    def _all_valid(self) -> bool:
        """Return whether all numbers are valid, which is faster to find out than whose are not."""
        step = self.precision.step
        end = self.precision.most * step
        counts = self.counts_KJ
        values = self.values_KJV
        inside = counts.min(initial=0) >= 0 and counts.max(initial=0) <= MAX_COUNT
        inside = inside and values.min(initial=0) >= -end and values.max(initial=0) <= end
        return bool(inside and (step == 1 or not (values % step).any()))

    def _reason(self, row: int) -> str:
        """Return what is wrong with a client's numbers."""
        counts_J = self.counts_KJ[row]
        values_JV = self.values_KJV[row]
        for count in (counts_J.min(initial=0), counts_J.max(initial=0)):
            if not 0 <= count <= MAX_COUNT:
                return f"a class has {count} samples, outside 0 to {MAX_COUNT}"
        end = self.precision.most * self.precision.step
        for value in (values_JV.min(initial=0), values_JV.max(initial=0)):
            if not -end <= value <= end:
                return f"the value {value} is outside the fixed-point range of ±{end}"
        return f"a value lies between those of the grid of {self.precision.bits} bits"


@dataclass(frozen=True)
class Globals:
    """The global prototypes: which classes have one, and their values."""

    present_J: Bools
    values_JV: Ints

    @staticmethod
    def none(classes: int, values: int) -> Globals:
        """Return the global prototypes before the first round: there are none."""
        return Globals(
            np.zeros(classes, dtype=np.bool_), np.zeros((classes, values), dtype=np.int64)
        )

    def floats(self) -> NDArray[np.float32]:
        """Return the values as clients train with them."""
        return (self.values_JV / 2.0**FRACTION_BITS).astype(np.float32)

    def parameters(self) -> int:
        """Return the number of values of the prototypes there are."""
        return int(self.present_J.sum() * self.values_JV.shape[1])

    def length(self, precision: Precision) -> int:
        """Return the length of the message that brings them to a client, in bytes."""
        return size(self.present_J.sum(keepdims=True), self.values_JV.shape[1], precision)


def size(classes_K: Ints, values: int, precision: Precision) -> int:
    """Return the length of messages with so many classes each, in bytes."""
    row = _CLASS.size + _row_bytes(values, precision.bits)
    return int(_HEADER.size * len(classes_K) + classes_K.sum() * row)


def _row_bytes(values: int, bits: int) -> int:
    """Return how many bytes so many values take."""
    return (values * bits + 7) // 8


def encode(
    round_: int, client: int, counts_J: Ints, values_JV: Ints, precision: Precision = FULL_PRECISION
) -> bytes:
    """Return one client's upload."""
    held = np.flatnonzero(counts_J)
    parts = [_header(round_, client, len(held), values_JV.shape[1], precision)]
    for j in held:
        digits = _digits(values_JV[j] // precision.step, precision.bits)
        parts += [_CLASS.pack(int(j), int(counts_J[j])), digits]
    return b"".join(parts)


def _digits(steps_V: Ints, bits: int) -> bytes:
    """Return the lowest bits of each number, in two's complement, so its sign is the highest."""
    bytes_V4 = steps_V.astype("<i4").view(np.uint8).reshape(-1, 4)
    if bits % 8 == 0:
        return bytes_V4[:, : bits // 8].tobytes()
    bits_VB = np.unpackbits(bytes_V4, axis=1, count=bits, bitorder="little")
    return np.packbits(bits_VB, bitorder="little").tobytes()


def _header(round_: int, client: int, held: int, values: int, precision: Precision) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, precision.bits, round_, client, held, values)


def origin(message: bytes) -> tuple[int, int]:
    """Return the round and the client that an upload names, which is long enough to be one."""
    _, _, _, round_, client, _, _ = _HEADER.unpack_from(message)
    return round_, client


def decode(
    message: bytes, classes: int, values: int, precision: Precision = FULL_PRECISION
) -> tuple[int, int, Ints, Ints]:
    """Return round, client, counts and values of an upload.

    Any bytes but those that `encode` writes are a UserError.
    """
    round_, client, rows, steps = _read(message, classes, values, precision)
    counts_J = np.zeros(classes, np.int64)
    values_JV = np.zeros((classes, values), np.int64)
    counts_J[rows["class"]] = rows["count"]
    values_JV[rows["class"]] = steps
    return round_, client, counts_J, values_JV * precision.step


def _read(
    message: bytes, classes: int, values: int, precision: Precision
) -> tuple[int, int, Rows, Words]:
    """Return round and client of an upload, its rows, and their values in steps.

    Everything that can be wrong with an upload is found here.
    """
    if len(message) < _HEADER.size:
        raise UserError(
            f"an upload of {len(message)} bytes is shorter than its header of {_HEADER.size}"
        )
    magic, version, bits, round_, client, held, length = _HEADER.unpack_from(message)
    form = (magic, version, bits, length)
    if form != (_MAGIC, _VERSION, precision.bits, values) or held > classes:
        raise UserError(
            f"not an upload of version {_VERSION} with {values} values of {precision.bits} bits "
            f"in at most {classes} classes"
        )
    row = _row(values, bits)
    expected = _HEADER.size + held * row.itemsize
    if len(message) != expected:
        raise UserError(
            f"an upload of {held} classes has {expected} bytes, this one {len(message)}"
        )
    rows = np.frombuffer(message, row, held, _HEADER.size)
    last = -1
    for j, count in zip(rows["class"].tolist(), rows["count"].tolist(), strict=True):
        if not last < j < classes or not 0 < count <= MAX_COUNT:
            raise UserError(
                f"class {j} with {count} samples is out of order, unknown, empty or too large"
            )
        last = j
    steps = _signed(rows["digits"], values, bits)
    if not _padded(rows["digits"], values, bits):
        raise UserError("a bit after the last value of a row is not 0")
    if not _within(steps, precision):
        raise UserError(f"a value is outside the fixed-point range of ±{precision.most}")
    return round_, client, rows, steps


@lru_cache(8)
def _row(values: int, bits: int) -> np.dtype[np.void]:
    """Return the layout of a class in a message."""
    digits = ("digits", np.uint8, (_row_bytes(values, bits),))
    return np.dtype([("class", "<u2"), ("count", "<u4"), digits])


def _signed(digits_RB: NDArray[np.uint8], values: int, bits: int) -> Words:
    """Return the numbers in the bytes of each row.

    They are moved to the upper end of a word, and shifted back with their sign.
    """
    rows = len(digits_RB)
    if bits % 8 == 0:
        width = bits // 8
        bytes_RV4 = np.zeros((rows, values, 4), np.uint8)
        bytes_RV4[..., 4 - width :] = digits_RB.reshape(rows, values, width)
        words_RV = bytes_RV4.view("<u4")[..., 0]
    else:
        # A number and the bits before it in its first byte are at most 31 bits: in 4 bytes.
        first_V = np.arange(values) * bits
        padded_RB = np.pad(digits_RB, ((0, 0), (0, 3)))
        words_RV = np.zeros((rows, values), np.uint32)
        for byte in range(4):
            words_RV |= padded_RB[:, first_V // 8 + byte].astype(np.uint32) << np.uint32(8 * byte)
        words_RV >>= (first_V % 8).astype(np.uint32)
        words_RV <<= np.uint32(32 - bits)
    signed_RV: Words = words_RV.view(np.int32) >> 32 - bits
    return signed_RV


def _padded(digits_RB: NDArray[np.uint8], values: int, bits: int) -> bool:
    """Return whether the bits after the last value of each row are 0, so that one form is valid."""
    used = values * bits % 8
    return not used or not (digits_RB[:, -1] >> used).any()


def _within(steps: Words, precision: Precision) -> bool:
    """Return whether no value is farther from 0 than allowed."""
    # One comparison instead of two: moved up by `most`, what is too low wraps around to very high.
    return bool(
        (steps + np.int32(precision.most)).view(np.uint32).max(initial=0) <= 2 * precision.most
    )


def _plainly_right(
    round_: int, client: int, message: bytes, classes: int, values: int, *, precision: Precision
) -> bool:
    """Return whether a message is right beyond doubt.

    Servers ask this of every message, and for a single one numpy takes longer. Where something is
    wrong, or a value so low that it may be, or not of whole bytes, `_read` finds out.
    """
    if precision.bits not in _TOPS:
        return False
    width = precision.bits // 8
    row = _packed_row(values * width)
    held, rest = divmod(len(message) - _HEADER.size, row.size)
    if rest or not 0 <= held <= classes:
        return False
    if not message.startswith(_header(round_, client, held, values, precision)):
        return False
    # A client need not send any class.
    if not held:
        return True
    class_R, count_R, digits_R = zip(*row.iter_unpack(message[_HEADER.size :]), strict=True)
    ordered = all(map(lt, class_R, class_R[1:])) and class_R[-1] < classes
    counted = min(count_R) > 0 and max(count_R) <= MAX_COUNT
    if not ordered or not counted:
        return False
    # Of all values only the highest bytes, less those that are beyond doubt: nothing may be left.
    highest = b"".join(digits_R)[width - 1 :: width]
    return not highest.translate(None, _TOPS[precision.bits])


@lru_cache(8)
def _packed_row(length: int) -> struct.Struct:
    """Return the layout of `_row` for the struct module, with the values in one piece."""
    return struct.Struct(f"{_CLASS.format}{length}s")


def refuses(
    round_: int,
    client: int,
    message: bytes,
    classes: int,
    values: int,
    *,
    precision: Precision,
    bound: Bound | None = None,
) -> str | None:
    """Return why a client's message is refused; None where it is admitted.

    It is refused if it is not well-formed, or of another round or client, or exceeds the bound.
    """
    plain = _plainly_right(round_, client, message, classes, values, precision=precision)
    if plain and bound is None:
        return None
    try:
        number, author, rows, steps_RV = _read(message, classes, values, precision)
    except UserError as error:
        return str(error)
    if (number, author) != (round_, client):
        return (
            f"it is of round {number} and client {author}, "
            f"not of round {round_} and client {client}"
        )
    if bound is None:
        return None
    counts_J = np.zeros(classes, np.int64)
    values_JV = np.zeros((classes, values), np.int64)
    counts_J[rows["class"]] = rows["count"]
    values_JV[rows["class"]] = steps_RV * np.int64(precision.step)
    return bound.problem(counts_J, values_JV)


def admit(
    round_: int,
    messages: Mapping[int, bytes],
    classes: int,
    values: int,
    precision: Precision,
    bound: Bound | None = None,
) -> Uploads:
    """Return the uploads in the clients' messages, less those that are refused."""
    return _admit(round_, messages, classes, values, precision)._within_bound(bound)


def _admit(
    round_: int, messages: Mapping[int, bytes], classes: int, values: int, precision: Precision
) -> Uploads:
    uploads = _together(round_, messages, classes, values, precision)
    if uploads is not None:
        return uploads
    refused = {}
    for client in sorted(messages):
        reason = refuses(round_, client, messages[client], classes, values, precision=precision)
        if reason is not None:
            refused[client] = reason
    admitted = {client: message for client, message in messages.items() if client not in refused}
    rest = _together(round_, admitted, classes, values, precision)
    assert rest is not None, "each by itself is right, so all are"
    return replace(rest, refused=refused)


def _together(
    round_: int, messages: Mapping[int, bytes], classes: int, values: int, precision: Precision
) -> Uploads | None:
    """Read messages as `decode` does, but all at once, which takes a tenth of the time.

    Return None if any is not as it should be.
    """
    clients = tuple(sorted(messages))
    row = _row(values, precision.bits)
    held_K = []
    bodies = []
    for client in clients:
        message = messages[client]
        held, rest = divmod(len(message) - _HEADER.size, row.itemsize)
        if rest or not 0 <= held <= classes:
            return None
        if not message.startswith(_header(round_, client, held, values, precision)):
            return None
        held_K.append(held)
        bodies.append(message[_HEADER.size :])
    rows = np.frombuffer(b"".join(bodies), row)
    row_R = np.repeat(np.arange(len(clients)), held_K)
    class_R = rows["class"]
    steps_RV = _signed(rows["digits"], values, precision.bits)
    # Classes ascend within each message, and messages follow one another: one comparison for all.
    ordered = (np.diff(row_R * classes + class_R) > 0).all() and class_R.max(initial=0) < classes
    counted = rows["count"].min(initial=1) > 0 and rows["count"].max(initial=1) <= MAX_COUNT
    if not ordered or not counted or not _within(steps_RV, precision):
        return None
    if not _padded(rows["digits"], values, precision.bits):
        return None
    counts_KJ = np.zeros((len(clients), classes), np.int64)
    values_KJV = np.zeros((len(clients), classes, values), np.int64)
    counts_KJ[row_R, class_R] = rows["count"]
    values_KJV[row_R, class_R] = steps_RV * np.int64(precision.step)
    return Uploads(clients, counts_KJ, values_KJV, precision=precision)
