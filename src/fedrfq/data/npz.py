"""Reading .npz strictly: plain numbers and text only, sizes checked before any memory is taken."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedrfq.data.archives import whole
from fedrfq.errors import UserError

LIMIT = 1 << 32
_PIECE = 1 << 24
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read(path: Path, wanted: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Those of the `wanted` arrays that the file holds."""
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path}: expected a whole .npz of numpy arrays, found none; make or get it again"
        )
    with whole(str(path)), zipfile.ZipFile(path) as archive:
        members = {
            name: info
            for info in archive.infolist()
            if (name := info.filename.removesuffix(".npy")) in wanted
        }
        if sum(info.file_size for info in members.values()) > LIMIT:
            raise UserError(
                f"{path}: expected at most {LIMIT} bytes of arrays, found more; use fewer images"
            )
        return {name: _member(archive, info, f"{path}: {name}") for name, info in members.items()}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> NDArray[Any]:
    with archive.open(info) as file:
        try:
            shape, fortran, dtype = _HEADERS[npy.read_magic(file)](file)
        except Exception as error:  # a hostile header may raise nearly anything
            raise UserError(
                f"{what}: expected a numpy array, found a broken header; write it with numpy.savez"
            ) from error
        size = math.prod(shape) * dtype.itemsize
        if (
            dtype.kind not in "uibU"
            or min(shape, default=0) < 0
            or size != info.file_size - file.tell()
        ):
            found = f"{dtype} {shape} in {info.file_size} bytes"
            raise UserError(
                f"{what}: expected whole numbers or text filling it exactly, found {found}; write it anew"
            )
        if size:
            flat = _filled(file, size, what).view(dtype)
        else:
            flat = np.empty(0, dtype)
    if fortran:
        return flat.reshape(shape[::-1]).T
    return flat.reshape(shape)


def _filled(file: IO[bytes], size: int, what: str) -> NDArray[np.uint8]:
    data = np.empty(size, np.uint8)
    for start in range(0, size, _PIECE):
        piece = file.read(min(_PIECE, size - start))
        if len(piece) != min(_PIECE, size - start):
            raise UserError(
                f"{what}: expected {size} bytes, found fewer; the file is cut short, get it again"
            )
        data[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
    return data
