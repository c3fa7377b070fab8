"""Read archives that may be hostile: members by exact name, none above a stated size.

Nothing is ever unpacked to the disk, so names inside an archive cannot escape a folder; odd ones
are refused all the same, as a sign of tampering.
"""

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
from fedrfq.files import regular
from fedrfq.files.regular import open_regular

MAX_MEMBERS = 10_000
# All that the standard library raises on damaged or hostile archives.
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
)


@contextmanager
def reporting_damage(what: str) -> Iterator[None]:
    """Turn the many errors of a damaged or unreadable file into one UserError."""
    try:
        yield
    except _BROKEN as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{what}: expected a complete, readable file, found: {why}; get the file again"
        ) from error


def read_bounded(file: IO[bytes] | gzip.GzipFile, limit: int, what: str) -> bytes:
    """Return everything in `file`, which must not be more than `limit` bytes."""
    # One byte more than allowed tells "too large" from "just fits".
    data = file.read(limit + 1)
    if len(data) > limit:
        raise UserError(
            f"{what}: expected at most {limit} bytes, found more; check where it came from"
        )
    return data


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of the file at `path`, which must not be more than `limit` bytes."""
    if not path.exists():
        raise UserError(f"{path}: expected a file, found none; check the path")
    with reporting_damage(path.name):
        return regular.read_bytes(path, limit, links=True)


def gunzip(data: bytes, limit: int, what: str) -> bytes:
    """Return gzip `data` unpacked, at most `limit` bytes."""
    with reporting_damage(what), gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return read_bounded(file, limit, what)


def read_tar(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Return the wanted members (name to size limit) of a .tar.gz, all of them plain files."""
    contents: dict[str, bytes] = {}
    with (
        reporting_damage(path.name),
        open_regular(path, links=True) as file_,
        tarfile.open(fileobj=file_, mode="r:gz") as archive,
    ):
        for count, member in enumerate(archive):
            _check_member(member.name, count, path.name)
            # Links and devices do not count as members.
            if member.name not in wanted or not member.isreg():
                continue
            file = archive.extractfile(member)
            if file is not None:
                contents[member.name] = read_bounded(file, wanted[member.name], member.name)
    _check_complete(contents, wanted, path.name)
    return contents


def read_zip(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Return the wanted members (name to size limit) of a .zip."""
    contents: dict[str, bytes] = {}
    with (
        reporting_damage(path.name),
        open_regular(path, links=True) as file_,
        zipfile.ZipFile(file_) as archive,
    ):
        for count, name in enumerate(archive.namelist()):
            _check_member(name, count, path.name)
            if name in wanted:
                with archive.open(name) as file:
                    contents[name] = read_bounded(file, wanted[name], name)
    _check_complete(contents, wanted, path.name)
    return contents


def _check_member(name: str, count: int, archive: str) -> None:
    if count >= MAX_MEMBERS:
        raise UserError(
            f"{archive}: expected at most {MAX_MEMBERS} members, found more; do not use this file"
        )
    escapes = (
        ".." in PurePosixPath(name).parts
        or PurePosixPath(name).is_absolute()
        or PureWindowsPath(name).anchor
    )
    if escapes or "\\" in name:
        raise UserError(
            f"{archive}: expected relative names inside the archive, found {name!r:.100}; "
            "do not use this file"
        )


def _check_complete(contents: dict[str, bytes], wanted: Mapping[str, int], archive: str) -> None:
    missing = sorted(set(wanted) - set(contents))
    if missing:
        raise UserError(
            f"{archive}: expected the member {missing[0]}, found none; "
            "check that this is the right archive"
        )
