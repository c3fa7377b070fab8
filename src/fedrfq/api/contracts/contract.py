"""What a contract is: checks that everything of one kind must pass, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Takes a registered name; raises Broken where the contract does not hold. What it returns is a
# remark, such as why there was nothing to check.
Check = Callable[[str], str | None]


class Broken(Exception):
    """A contract does not hold; the text says what was found."""


def expect(holds: Any, found: str) -> None:
    """Raise Broken, with what was found, unless something holds."""
    if not holds:
        raise Broken(found)


def read_only(*arrays: NDArray[Any]) -> None:
    """Make arrays such that whoever changes them fails."""
    for array in arrays:
        array.setflags(write=False)


def same_bytes(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same, to the bit and by their types."""
    left = np.asarray(one)
    right = np.asarray(other)
    is_alike = (left.dtype, left.shape) == (right.dtype, right.shape)
    return is_alike and left.tobytes() == right.tobytes()


def bounded(sizes: list[int]) -> None:
    """Expect that the bytes of what is remembered do not grow from each round to the next."""
    grows = [later > before for before, later in pairwise(sizes)]
    expect(not all(grows), f"it remembers more in every round: {sizes[0]} … {sizes[-1]} bytes")


def whole(what: str, array: Any, shape: tuple[int, ...]) -> None:
    """Expect an array of 64-bit integers of this shape."""
    expect(
        isinstance(array, np.ndarray) and array.dtype == np.int64 and array.shape == shape,
        f"{what} must be int64 of shape {shape}, "
        f"found {getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}",
    )
