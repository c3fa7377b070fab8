"""The bytes that servers agree on: prototypes, verdicts, the state, public statistics.

Each has one fixed layout, and decoders accept exactly what the encoders write. Every size is
checked before anything is allocated.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np

from fedrfq.consensus.wire import Reader, Refused, sized, u8, u32
from fedrfq.errors import UserError
from fedrfq.federation.public_task import PublicTask
from fedrfq.prototypes import fixed_point
from fedrfq.prototypes.fixed_point import LIMIT, Bools, Globals, Ints
from fedrfq.robust.detectors.detector import FULL, Reason, Verdict
from fedrfq.robust.detectors.reasons import is_reason
from fedrfq.robust.state import State

_VERDICT = np.dtype([("client", "<u4"), ("score", "<i8")])
# An upload of a class with a reason; `row` is its client's place among the verdicts.
_REDUCED = np.dtype([("row", "<u4"), ("class", "<u2"), ("weight", "<u2"), ("reason", "<u4")])
# Bounds of an array in the state. The second holds for empty arrays too: numpy could not hold the
# other dimensions that they claim.
_MAX_DIMS = 4
_MAX_ITEMS = 1 << 32
_MIN_ARRAY_SIZE = 5  # bytes: the length of its name and the number of its dimensions


def encode_globals(globals_: Globals) -> bytes:
    """Encode prototypes: one byte a class (1 if it has a prototype), then 4 bytes a value."""
    flags = globals_.present_J.astype(np.uint8).tobytes()
    return flags + globals_.values_JV.astype("<i4").tobytes()


def decode_globals(content: bytes, classes: int, values: int) -> Globals:
    """Decode the prototypes of so many classes, each of so many values."""
    if len(content) != classes * (1 + 4 * values):
        raise Refused(f"{len(content)} bytes are not {classes} prototypes of {values} values")
    flags_J = np.frombuffer(content, np.uint8, classes)
    flat = np.frombuffer(content, "<i4", offset=classes)
    values_JV = flat.reshape(classes, values).astype(np.int64)
    if (flags_J > 1).any() or np.abs(values_JV).max(initial=0) >= LIMIT:
        raise Refused("a prototype's flag or value is out of range")
    return Globals(flags_J.astype(np.bool_), values_JV)


def encode_public(globals_: Globals, task: PublicTask) -> bytes:
    """Encode statistics on a public feature map as an upload of them, each row with a count of 1.

    Without any row there are no bytes.
    """
    if not globals_.present_J.any():
        return b""
    rows_J = globals_.present_J.astype(np.int64)
    return fixed_point.encode(0, 0, rows_J, globals_.values_JV, task.precision)


def decode_public(content: bytes, task: PublicTask | None) -> Globals | None:
    """Decode statistics on a public feature map; None if there are none yet."""
    if not content:
        return None
    if task is None:
        raise Refused("there are public statistics, but the federation has no public feature map")
    try:
        round_, client, rows_J, values_JV = fixed_point.decode(
            content, task.rows, task.values, task.precision
        )
    except UserError as error:
        raise Refused(f"not public statistics: {error}") from error
    if round_ or client or not rows_J.any() or rows_J.max() > 1:
        raise Refused("public statistics have a round, a client or counts, or no row at all")
    return Globals(rows_J > 0, values_JV)


def encode_verdicts(clients: tuple[int, ...], verdict: Verdict) -> bytes:
    """Encode the verdicts on clients in ascending order.

    First come their numbers and scores, then a bit for each client and class (1 if it was sent),
    then the uploads of a class that have a reason, with their weights. All others count in full.
    Without any client there are no bytes.
    """
    if not clients:
        return b""
    rows = np.zeros(len(clients), _VERDICT)
    rows["client"] = clients
    rows["score"] = verdict.score_K
    row_N, class_N = np.nonzero(verdict.reason_KJ)
    reduced = np.zeros(len(row_N), _REDUCED)
    reduced["row"] = row_N
    reduced["class"] = class_N
    reduced["weight"] = verdict.weight_KJ[row_N, class_N]
    reduced["reason"] = verdict.reason_KJ[row_N, class_N]
    sent = np.packbits(verdict.sent_KJ, bitorder="little").tobytes()
    return u32(len(clients)) + rows.tobytes() + sent + reduced.tobytes()


def decode_verdicts(content: bytes, classes: int) -> tuple[tuple[int, ...], Verdict]:
    """Decode the clients and the verdicts on them, for so many classes."""
    if not content:
        return (), Verdict.on_nobody(classes)
    reader = Reader(content)
    rows = np.frombuffer(reader.take(reader.u32() * _VERDICT.itemsize), _VERDICT)
    clients = tuple(rows["client"].tolist())
    if not clients or any(a >= b for a, b in pairwise(clients)):
        raise Refused("verdicts are not in ascending order of their clients")
    sent_KJ = _read_bits(reader, len(clients), classes)
    reduced = np.frombuffer(reader.take(reader.left()), np.uint8)
    if len(reduced) % _REDUCED.itemsize:
        raise Refused(f"{len(reduced)} bytes are not reasons of {_REDUCED.itemsize} bytes each")
    weight_KJ = np.where(sent_KJ, FULL, 0)
    reason_KJ = np.zeros_like(weight_KJ)
    last = (-1, -1)
    for row, class_, weight, reason in reduced.view(_REDUCED).tolist():
        if not last < (row, class_) or row >= len(clients) or class_ >= classes:
            raise Refused("reasons are out of order, or of an unknown client or class")
        if not sent_KJ[row, class_] or not is_reason(reason, classes):
            raise Refused(f"class {class_} was not sent, or its reason is unknown")
        # A count that was cut takes nothing of the weight.
        if weight > FULL or (weight == FULL and reason != Reason.COUNT):
            raise Refused(f"a weight of {weight} with a reason: expected less than {FULL}")
        weight_KJ[row, class_] = weight
        reason_KJ[row, class_] = reason
        last = (row, class_)
    return clients, Verdict(weight_KJ, rows["score"].astype(np.int64), reason_KJ)


def _read_bits(reader: Reader, rows: int, columns: int) -> Bools:
    """Return as many bits as a table has; those that fill the last byte must be 0."""
    packed = np.frombuffer(reader.take((rows * columns + 7) // 8), np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    if bits[rows * columns :].any():
        raise Refused("there are bits after those of the classes")
    return bits[: rows * columns].reshape(rows, columns).astype(np.bool_)


def encode_state(state: State) -> bytes:
    """Encode arrays by ascending name: the name, the shape, and 8 bytes for each value."""
    arrays = [_encode_array(name, array) for name, array in sorted(state.items())]
    return u32(len(state)) + b"".join(arrays)


def _encode_array(name: str, array: Ints) -> bytes:
    shape = u8(array.ndim) + b"".join(map(u32, array.shape))
    return sized(name.encode()) + shape + array.astype("<i8").tobytes()


def decode_state(content: bytes) -> State:
    """Decode the arrays of a state."""
    reader = Reader(content)
    arrays = reader.many(_MIN_ARRAY_SIZE, lambda: _read_array(reader))
    reader.end()
    if any(a >= b for (a, _), (b, _) in pairwise(arrays)):
        raise Refused("the state's arrays are not in ascending order of their names")
    return dict(arrays)


def _read_array(reader: Reader) -> tuple[str, Ints]:
    try:
        name = reader.sized().decode()
    except UnicodeDecodeError as error:
        raise Refused("an array's name is not UTF-8") from error
    dims = reader.u8()
    if dims > _MAX_DIMS:
        raise Refused(f"an array of {dims} dimensions: at most {_MAX_DIMS} are allowed")
    shape = tuple(reader.u32() for _ in range(dims))
    if prod(max(size, 1) for size in shape) > _MAX_ITEMS:
        raise Refused(f"an array of shape {shape}: at most {_MAX_ITEMS} items are allowed")
    flat = np.frombuffer(reader.take(8 * prod(shape)), "<i8")
    return name, flat.reshape(shape).astype(np.int64)
