"""Randomness as a function: every random bit of a client is a hash of (seed, client, round, purpose, counter).

A generator has a state, and what it yields depends on who drew before. Here nothing is drawn: bit number i of a stream
is computed from the stream's key alone (SplitMix64 in counter mode, on wrapping 64-bit integers). So a client gets the
same order, dropout and crops on any device and whatever it is stacked with, and the round number is all the generator
state a checkpoint needs.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What a stream is for: one number each, never reused."""

    START = 1
    PARTITION = 2
    ORDER = 3
    DROPOUT = 4
    AUGMENT = 5
    PARTICIPATION = 6
    MALICIOUS = 7
    POISON = 8
    CORRUPT = 9
    VALIDATION = 10


def _signed(word: int) -> int:
    word &= 2**64 - 1
    if word >= 2**63:
        return word - 2**64
    return word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's `>>` on int64 copies the sign)."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def key(*parts: int | Tensor) -> Tensor:
    """The key of a stream, from integers or tensors of integers that broadcast: order matters, position counts."""
    device = next((part.device for part in parts if isinstance(part, Tensor)), None)
    state = torch.zeros((), dtype=torch.int64, device=device)
    for part in parts:
        state = _mix(
            state * _SECOND + (part if isinstance(part, Tensor) else _signed(part)) + _GOLDEN
        )
    return state


def integer(*parts: int) -> int:
    """A non-negative 63-bit seed for generators that take one."""
    return int(key(*parts)) & (2**63 - 1)


def bits(keys: Tensor, purpose: Purpose, count: int, salt: int = 0) -> Tensor:
    """`count` random 64-bit words for each key: shape keys × count. Word i depends on its key, purpose, salt and i alone."""
    stream = key(keys, int(purpose), salt)
    counter = torch.arange(1, count + 1, device=keys.device)
    return _mix(stream[..., None] + counter * _GOLDEN)


def uniform(keys: Tensor, purpose: Purpose, count: int, salt: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) with 24 random bits each: exactly representable in float32."""
    words = bits(keys, purpose, (count + 1) // 2, salt)
    halves = torch.stack([_shift(words, 40), (words >> 8) & 0xFFFFFF], dim=-1).flatten(-2)[
        ..., :count
    ]
    return halves.to(torch.float32) * 2.0**-24


def order(keys: Tensor, counts: Tensor, size: int, salt: int = 0) -> Tensor:
    """A random order of 0 … counts[k]−1 for each key, first in its row of `size`; what follows is padding."""
    words = bits(keys, Purpose.ORDER, size, salt)
    padding = torch.arange(size, device=keys.device) >= counts[:, None]
    return words.masked_fill(padding, 2**63 - 1).argsort(dim=-1, stable=True)
