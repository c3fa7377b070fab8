"""The IDX format of MNIST and EMNIST: a magic number, the sizes, then plain bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.archives import gunzip, read_file
from fedrfq.errors import UserError

LIMIT = 700_000_000  # EMNIST's largest file unpacked is 547 MB


def parse(data: bytes, dimensions: int, what: str) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in `data`, which must have exactly the stated size."""
    start = 4 + 4 * dimensions
    # Two zeros, the type (8: unsigned bytes), the number of dimensions.
    if data[:4] != bytes((0, 0, 8, dimensions)) or len(data) < start:
        raise UserError(
            f"{what}: expected IDX bytes in {dimensions} dimensions, found {data[:4]!r}; "
            "fetch the file again"
        )
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    expected = math.prod(shape)
    found = len(data) - start
    if found != expected:
        raise UserError(
            f"{what}: expected {expected} bytes after the header, found {found}; "
            "fetch the file again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def images(data: bytes, what: str) -> NDArray[np.uint8]:
    """Return N×1×H×W images."""
    return parse(data, 3, what)[:, None]


def labels(data: bytes, what: str) -> NDArray[np.int64]:
    """Return N labels."""
    return parse(data, 1, what).astype(np.int64)


def read(folder: Path, stem: str) -> bytes:
    """Return the unpacked bytes of `stem` or `stem`.gz in `folder`."""
    packed = folder / f"{stem}.gz"
    if packed.is_file():
        return gunzip(read_file(packed, LIMIT), LIMIT, packed.name)
    if (folder / stem).is_file():
        return read_file(folder / stem, LIMIT)
    raise UserError(
        f"{folder}: expected {stem} or {stem}.gz in this folder, found neither; "
        "put the four IDX files there"
    )
