"""Prototypes as they leave a client and as they come back: fixed-point integers, so that every sum over them is exact.

A value v is the integer round(v · 2¹⁴), with |q| < 2²⁰ (so |v| < 64). Honest machines then agree to the bit on what they
aggregate, whatever their hardware (floating-point sums would differ), and a server can check a range instead of hoping.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.errors import UserError

FRACTION_BITS = 14
LIMIT = 2**20  # |q| stays below it
MOST_VALUES = 2**16 - 1  # of a prototype
_HEADER = struct.Struct("<4sBIIHH")  # magic, version, round, client, classes, values each
_CLASS = struct.Struct("<HI")  # class, count
_MAGIC, _VERSION = b"FRFQ", 1

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Uploads:
    """All that leaves the clients in a round: per client and class the number of samples (0: not held) and P̄, quantised."""

    clients: tuple[int, ...]
    counts_KJ: Ints
    values_KJV: Ints
    saturated: int = 0  # values that had to be cut to the fixed-point range

    def parameters(self) -> int:
        """Values uploaded by all clients together, as the paper's tables count them."""
        return int((self.counts_KJ > 0).sum() * self.values_KJV.shape[2])

    def encoded(self, round_: int) -> list[bytes]:
        """Each client's message in the one canonical layout."""
        rows = zip(self.clients, self.counts_KJ, self.values_KJV, strict=True)
        return [encode(round_, client, counts, values) for client, counts, values in rows]


@dataclass(frozen=True)
class Globals:
    """The global prototypes: which classes have one, and their values."""

    present_J: NDArray[np.bool_]
    values_JV: Ints

    @staticmethod
    def none(classes: int, values: int) -> Globals:
        return Globals(np.zeros(classes, dtype=np.bool_), np.zeros((classes, values), dtype=np.int64))

    def floats(self) -> NDArray[np.float32]:
        return (self.values_JV / 2.0**FRACTION_BITS).astype(np.float32)

    def parameters(self) -> int:
        return int(self.present_J.sum() * self.values_JV.shape[1])


def class_means(p_KNV: Tensor, y_KN: Tensor, weight_KN: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """P̄ of Eq. 9's inputs: each client's mean pooled prototype a class, and the number of samples behind it."""
    member_KNJ = torch.nn.functional.one_hot(y_KN, classes).to(p_KNV.dtype) * weight_KN[..., None]
    counts_KJ = member_KNJ.sum(1)
    sums_KJV = torch.bmm(member_KNJ.mT, p_KNV)
    return sums_KJV / counts_KJ.clamp_min(1)[..., None], counts_KJ.round().long()


def quantise(values: Tensor) -> tuple[Ints, int]:
    """Nearest fixed-point integers, cut to the range, and how many were cut. NaN and infinities are refused."""
    if not bool(torch.isfinite(values).all()):
        raise UserError("a prototype is not finite: training diverged; lower train.lr or method.lam")
    scaled = torch.round(values.double() * 2.0**FRACTION_BITS)
    cut = scaled.clamp(1 - LIMIT, LIMIT - 1)
    return cut.long().cpu().numpy(), int((cut != scaled).sum())


def encode(round_: int, client: int, counts_J: Ints, values_JV: Ints) -> bytes:
    """One client's upload: a header, then for each class it holds, in order, the class, the count and 24-bit values."""
    held = np.flatnonzero(counts_J)
    parts = [_HEADER.pack(_MAGIC, _VERSION, round_, client, len(held), values_JV.shape[1])]
    for j in held:
        body = values_JV[j].astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3]
        parts += [_CLASS.pack(int(j), int(counts_J[j])), body.tobytes()]
    return b"".join(parts)


def decode(message: bytes, classes: int, values: int) -> tuple[int, int, Ints, Ints]:
    """Round, client, counts and values of an upload; any bytes but those `encode` writes are refused."""
    if len(message) < _HEADER.size:
        raise UserError(f"an upload of {len(message)} bytes is shorter than its header of {_HEADER.size}")
    magic, version, round_, client, held, length = _HEADER.unpack_from(message)
    if (magic, version, length) != (_MAGIC, _VERSION, values) or held > classes:
        raise UserError(f"not an upload of version {_VERSION} with {values} values in at most {classes} classes")
    size = _CLASS.size + 3 * values
    if len(message) != _HEADER.size + held * size:
        raise UserError(f"an upload of {held} classes has {_HEADER.size + held * size} bytes, this one {len(message)}")
    counts_J, values_JV = np.zeros(classes, np.int64), np.zeros((classes, values), np.int64)
    last = -1
    for start in range(_HEADER.size, len(message), size):
        j, count = _CLASS.unpack_from(message, start)
        if not last < j < classes or count == 0:
            raise UserError(f"class {j} with {count} samples is out of order, unknown or empty")
        counts_J[j], values_JV[j] = count, _signed24(message[start + _CLASS.size : start + size])
        last = j
    if np.abs(values_JV).max(initial=0) >= LIMIT:
        raise UserError(f"a value is outside the fixed-point range of ±{LIMIT}")
    return round_, client, counts_J, values_JV


def _signed24(body: bytes) -> Ints:
    digits = np.frombuffer(body, np.uint8).reshape(-1, 3).astype(np.int64)
    words = digits @ np.array([1, 1 << 8, 1 << 16])
    signed: Ints = np.where(words >= 1 << 23, words - (1 << 24), words)
    return signed


def combine(previous: Globals, uploads: Uploads, rule: str) -> Globals:
    """The global prototypes (Eq. 9, as `rule` reads it), exact on integers; a class nobody sent keeps its last one.

    `weighted`: by samples, the weights sum to 1. `mean`: every holder counts alike (FedProto's code). `paper`: the letter
    of Eq. 9, which divides the weighted mean by the number of holders once more and so shrinks it.
    """
    holders_KJ = (uploads.counts_KJ > 0).astype(np.int64)
    weights_KJ = holders_KJ if rule == "mean" else uploads.counts_KJ
    total_J = weights_KJ.sum(0) * (holders_KJ.sum(0) if rule == "paper" else 1)
    sums_JV = np.einsum("kj,kjv->jv", weights_KJ, uploads.values_KJV)
    present_J = total_J > 0
    fresh_JV = sums_JV // np.maximum(total_J, 1)[:, None]
    values_JV = np.where(present_J[:, None], fresh_JV, previous.values_JV)
    return Globals(present_J | previous.present_J, values_JV)
