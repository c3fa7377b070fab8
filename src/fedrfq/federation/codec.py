"""What servers agree on as bytes: global prototypes, verdicts and the detector's memory, each in one fixed layout.

Decoders take exactly what the encoders write: every size is checked before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod

import numpy as np

from fedrfq.consensus.wire import Reader, Refused, sized, u8, u32
from fedrfq.prototypes.fixed_point import LIMIT, Globals, Ints
from fedrfq.robust.detectors.detector import State, Verdict

_VERDICT = np.dtype([("client", "<u4"), ("kept", "u1"), ("score", "<i8")])
_SUCCESSOR = 255  # stands where a verdict says 0 or 1
# of an array; an empty one may not claim what numpy cannot hold either
_MOST_DIMS = 4
_MOST_ITEMS = 1 << 32


def encode_globals(globals_: Globals) -> bytes:
    """A byte a class (1: it has a prototype), then all values in 4 bytes each."""
    return (
        globals_.present_J.astype(np.uint8).tobytes() + globals_.values_JV.astype("<i4").tobytes()
    )


def decode_globals(content: bytes, classes: int, values: int) -> Globals:
    if len(content) != classes * (1 + 4 * values):
        raise Refused(f"{len(content)} bytes are not {classes} prototypes of {values} values")
    flags_J = np.frombuffer(content, np.uint8, classes)
    values_JV = (
        np.frombuffer(content, "<i4", offset=classes).reshape(classes, values).astype(np.int64)
    )
    if (flags_J > 1).any() or np.abs(values_JV).max(initial=0) >= LIMIT:
        raise Refused("a prototype's mark or value is out of range")
    return Globals(flags_J.astype(np.bool_), values_JV)


def encode_verdicts(clients: tuple[int, ...], verdict: Verdict) -> bytes:
    """For each client, in ascending order: its number, whether it is kept, its score."""
    rows = np.zeros(len(clients), _VERDICT)
    rows["client"] = clients
    rows["kept"] = verdict.kept_K
    rows["score"] = verdict.score_K
    return rows.tobytes()


def append_successor(verdicts: bytes, successor: bytes) -> bytes:
    """A run's last verdicts, and the federation that takes its place. A row that can be no verdict ends them: so many bytes
    before it are the successor."""
    return verdicts + successor + np.array([(len(successor), _SUCCESSOR, 0)], _VERDICT).tobytes()


def successor_in(content: bytes) -> bytes:
    """The federation that takes this one's place from these verdicts on; nothing where none does."""
    if len(content) < _VERDICT.itemsize:
        return b""
    length, mark, score = np.frombuffer(content[-_VERDICT.itemsize :], _VERDICT)[0].tolist()
    if mark != _SUCCESSOR:
        return b""
    if score or not 0 < length <= len(content) - _VERDICT.itemsize:
        raise Refused(f"a successor of {length} bytes")
    return content[-_VERDICT.itemsize - length : -_VERDICT.itemsize]


def decode_verdicts_without_successor(content: bytes) -> tuple[tuple[int, ...], Verdict]:
    """The verdicts alone, whatever federation succeeds."""
    if following := successor_in(content):
        content = content[: -len(following) - _VERDICT.itemsize]
    if len(content) % _VERDICT.itemsize:
        raise Refused(f"{len(content)} bytes are not verdicts of {_VERDICT.itemsize} bytes each")
    rows = np.frombuffer(content, _VERDICT)
    clients = tuple(rows["client"].tolist())
    if any(a >= b for a, b in pairwise(clients)) or (rows["kept"] > 1).any():
        raise Refused("verdicts are out of order, or neither kept nor dropped")
    return clients, Verdict(rows["kept"].astype(np.bool_), rows["score"].astype(np.int64))


def encode_state(state: State) -> bytes:
    """The arrays by ascending name: the name, the shape, the values in 8 bytes each."""
    return u32(len(state)) + b"".join(_array(name, array) for name, array in sorted(state.items()))


def _array(name: str, array: Ints) -> bytes:
    shape = u8(array.ndim) + b"".join(map(u32, array.shape))
    return sized(name.encode()) + shape + array.astype("<i8").tobytes()


def decode_state(content: bytes) -> State:
    reader = Reader(content)
    found = reader.many(5, lambda: _read_array(reader))
    reader.end()
    if any(a >= b for (a, _), (b, _) in pairwise(found)):
        raise Refused("the detector's arrays are out of order")
    state: Mapping[str, Ints] = dict(found)
    return state


def _read_array(reader: Reader) -> tuple[str, Ints]:
    try:
        name = reader.sized().decode()
    except UnicodeDecodeError as error:
        raise Refused("a name is not UTF-8") from error
    dims = reader.u8()
    if dims > _MOST_DIMS:
        raise Refused(f"an array of {dims} dimensions")
    shape = tuple(reader.u32() for _ in range(dims))
    if prod(max(size, 1) for size in shape) > _MOST_ITEMS:
        raise Refused(f"an array of shape {shape}")
    return name, np.frombuffer(reader.take(8 * prod(shape)), "<i8").reshape(shape).astype(np.int64)
