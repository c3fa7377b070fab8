"""Randomness as a function: a client's random bits are a hash of seed, client, round and purpose.

A generator has a state, and what it yields depends on who drew before. Here nothing is drawn: word
number i of a stream is computed from the stream's key alone (SplitMix64 in counter mode, on
wrapping 64-bit integers). So a client gets the same order, dropout and crops on any device and in
any stack, and the round number is all the generator state that a snapshot needs.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What a stream is for. Numbers are never reused."""

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
    COMMON_TEST = 11
    SERVER = 12
    TARGETS = 13


def _signed(word: int) -> int:
    """Return the lowest 64 bits of an integer as torch's int64 holds them."""
    word &= 2**64 - 1
    if word >= 2**63:
        return word - 2**64
    return word


# SplitMix64's constants.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right logically (torch's `>>` on int64 copies the sign)."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _mix(z: Tensor) -> Tensor:
    """Apply SplitMix64's output function."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def key(*parts: int | Tensor) -> Tensor:
    """Return the key of a stream, from integers or tensors of integers that broadcast.

    The order of the parts matters.
    """
    device = next((part.device for part in parts if isinstance(part, Tensor)), None)
    state = torch.zeros((), dtype=torch.int64, device=device)
    for part in parts:
        if not isinstance(part, Tensor):
            part = _signed(part)
        state = _mix(state * _SECOND + part + _GOLDEN)
    return state


def integer(*parts: int) -> int:
    """Return a non-negative 63-bit seed for generators that take one."""
    return int(key(*parts)) & (2**63 - 1)


def bits(keys: Tensor, purpose: Purpose, count: int, salt: int = 0) -> Tensor:
    """Return `count` random 64-bit words for each key: shape keys × count.

    Word i depends on its key, the purpose, the salt and i alone.
    """
    stream = key(keys, int(purpose), salt)
    counter = torch.arange(1, count + 1, device=keys.device)
    return _mix(stream[..., None] + counter * _GOLDEN)


def uniform(keys: Tensor, purpose: Purpose, count: int, salt: int = 0) -> Tensor:
    """Return uniform numbers in [0, 1) with 24 random bits each, which float32 holds exactly."""
    words = bits(keys, purpose, (count + 1) // 2, salt)
    # Two numbers from each word: its highest 24 bits, and the highest 24 of its lower half.
    halves = torch.stack([_shift(words, 40), (words >> 8) & 0xFFFFFF], dim=-1).flatten(-2)
    return halves[..., :count].to(torch.float32) * 2.0**-24


def order(keys: Tensor, counts: Tensor, size: int, salt: int = 0) -> Tensor:
    """Return a random order of 0 … counts[k]−1 for each key k, first in its row of `size`.

    What follows in the row is padding.
    """
    words = bits(keys, Purpose.ORDER, size, salt)
    padding = torch.arange(size, device=keys.device) >= counts[:, None]
    return words.masked_fill(padding, 2**63 - 1).argsort(dim=-1, stable=True)
