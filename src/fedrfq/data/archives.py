"""Reading archives that may be hostile: one member at a time, by exact name, never more than a stated size."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from fedrfq.errors import UserError

MOST_MEMBERS = 10_000
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError),
    *(zlib.error, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile),
)


@contextmanager
def whole(what: str) -> Iterator[None]:
    """Turn the many ways a file can be broken or unreadable into one line for the user."""
    try:
        yield
    except _BROKEN as error:
        raise UserError(
            f"{what}: expected a whole, readable file, found: {error}; get it again"
        ) from error


def read_bounded(file: IO[bytes] | gzip.GzipFile, limit: int, what: str) -> bytes:
    """Everything in `file`, which must not be more than `limit` bytes."""
    data = file.read(limit + 1)
    if len(data) > limit:
        raise UserError(
            f"{what}: expected at most {limit} bytes, found more; check where it came from"
        )
    return data


def read_file(path: Path, limit: int) -> bytes:
    """Everything in the file at `path`, which must exist and not be more than `limit` bytes."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file, found none; check the path")
    with whole(path.name), path.open("rb") as file:
        return read_bounded(file, limit, path.name)


def gunzip(data: bytes, limit: int, what: str) -> bytes:
    """The unpacked form of gzip `data`, at most `limit` bytes."""
    with whole(what), gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return read_bounded(file, limit, what)


def read_tar(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """The wanted members (name → most bytes) of a .tar.gz; each must be there as a plain file."""
    found: dict[str, bytes] = {}
    with whole(path.name), tarfile.open(path, "r:gz") as archive:
        for count, member in enumerate(archive):
            _check_member(member.name, count, path.name)
            if member.name in wanted and member.isreg():
                file = archive.extractfile(member)
            else:
                file = None
            if file is not None:
                found[member.name] = read_bounded(file, wanted[member.name], member.name)
    return _all_there(found, wanted, path.name)


def read_zip(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """The wanted members (name → most bytes) of a .zip; each must be there."""
    found: dict[str, bytes] = {}
    with whole(path.name), zipfile.ZipFile(path) as archive:
        for count, name in enumerate(archive.namelist()):
            _check_member(name, count, path.name)
            if name in wanted:
                with archive.open(name) as file:
                    found[name] = read_bounded(file, wanted[name], name)
    return _all_there(found, wanted, path.name)


def _check_member(name: str, count: int, archive: str) -> None:
    if count >= MOST_MEMBERS:
        raise UserError(
            f"{archive}: expected at most {MOST_MEMBERS} members, found more; do not use it"
        )
    outside = (
        ".." in PurePosixPath(name).parts
        or PurePosixPath(name).is_absolute()
        or PureWindowsPath(name).anchor
    )
    if outside or "\\" in name:
        raise UserError(
            f"{archive}: expected names inside the archive, found {name!r:.100}; do not use it"
        )


def _all_there(
    found: dict[str, bytes], wanted: Mapping[str, int], archive: str
) -> dict[str, bytes]:
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise UserError(
            f"{archive}: expected the member {missing[0]}, found none; fetch the right archive"
        )
    return found
