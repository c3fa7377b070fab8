"""Read .npz files strictly: plain numbers and text only, sizes checked before memory is taken.

numpy.load would unpickle objects on request and trust the sizes in the headers.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedrfq.data.archives import reporting_damage
from fedrfq.errors import UserError, each_of
from fedrfq.files.regular import open_regular

# Bytes of all arrays together.
LIMIT = 1 << 32
# Of the file: its arrays, and a little for the archive's own headers.
_MAX_FILE_BYTES = LIMIT + (1 << 20)
_CHUNK_BYTES = 1 << 24
# Of all arrays of a file that is in memory as a whole.
_MAX_SMALL_BYTES = 1 << 28
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read(path: Path, wanted: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return those of the `wanted` arrays that the file holds."""
    with reporting_damage(str(path)), open_regular(path, links=True) as file:
        _check_file(file, path)
        archive = zipfile.ZipFile(file)
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        members = {name: info for name, info in members.items() if name in wanted}
        # By the sizes in the directory; _check_header holds each array to its own.
        if sum(info.file_size for info in members.values()) > LIMIT:
            raise UserError(
                f"{path}: expected at most {LIMIT} bytes of arrays, found more; use fewer images"
            )
        return each_of(lambda name, info: _array(archive, info, f"{path}: {name}"), members)


def read_all(content: bytes, what: str) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file's content, which is small enough to be in memory already.

    Compressed, they may still be large, so the sizes are checked first.
    """
    with reporting_damage(what), zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(info.file_size for info in members) > _MAX_SMALL_BYTES:
            raise UserError(f"{what}: expected at most {_MAX_SMALL_BYTES} bytes of arrays")
        return {
            info.filename.removesuffix(".npy"): _array(archive, info, f"{what}: {info.filename}")
            for info in members
        }


def _check_file(file: BinaryIO, path: Path) -> None:
    """Check the file's size and that it is an archive, before its list of members is read."""
    size = os.fstat(file.fileno()).st_size
    if size > _MAX_FILE_BYTES:
        raise UserError(
            f"{path}: expected a file of at most {_MAX_FILE_BYTES} bytes, found {size}; "
            "use fewer images"
        )
    if not zipfile.is_zipfile(file):
        raise UserError(
            f"{path}: expected a complete .npz of numpy arrays, found something else; "
            "write it with numpy.savez or get it again"
        )


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> NDArray[Any]:
    with archive.open(info) as file:
        try:
            shape, fortran, dtype = _HEADERS[npy.read_magic(file)](file)
        except Exception as error:  # a hostile header may raise nearly anything
            raise UserError(
                f"{what}: expected a numpy array, found a broken header; write it with numpy.savez"
            ) from error
        _check_header(shape, dtype, info, file.tell(), what)
        size = math.prod(shape) * dtype.itemsize
        flat = np.empty(0, dtype)
        if size:
            flat = _read_exactly(file, size, what).view(dtype)
    if fortran:
        return flat.reshape(shape[::-1]).T
    return flat.reshape(shape)


def _check_header(
    shape: tuple[int, ...], dtype: np.dtype[Any], info: zipfile.ZipInfo, start: int, what: str
) -> None:
    if dtype.kind not in "uifbU":
        array = what.rpartition(" ")[2]
        remedy = "convert it to numbers"
        if dtype.kind in "OS":
            # Text is often kept so, and is refused because reading objects runs what is in them.
            remedy = f"store {array}.astype(str) if it is text, and numbers as numbers"
        raise UserError(f"{what}: expected numbers or text, found {dtype} {shape}; {remedy}")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != info.file_size - start:
        raise UserError(
            f"{what}: expected an array that fills its {info.file_size} bytes exactly, "
            f"found {dtype} {shape}; write it again with numpy.savez"
        )


def _read_exactly(file: IO[bytes], size: int, what: str) -> NDArray[np.uint8]:
    # In chunks, so that the array is never in memory twice.
    data = np.empty(size, np.uint8)
    for start in range(0, size, _CHUNK_BYTES):
        expected = min(_CHUNK_BYTES, size - start)
        chunk = file.read(expected)
        if len(chunk) != expected:
            raise UserError(
                f"{what}: expected {size} bytes, found fewer: the file is truncated; get it again"
            )
        data[start : start + len(chunk)] = np.frombuffer(chunk, np.uint8)
    return data
