"""Files of folders that may be hostile: regular files only, and no more bytes than stated.

Opening a pipe waits for a writer, perhaps for ever. A device may be read without end, and merely
opening one can do something. A sparse file of a terabyte takes no space. A link may lead anywhere.
Whatever is refused here is an OSError whose text says why, as if the system had refused it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from fedrfq.errors import UserError

# Without O_NONBLOCK, a pipe that took the file's place after the first look would hang us.
_ALWAYS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def descriptor(path: Path, flags: int, *, links: bool = False) -> int:
    """Open an existing regular file with the flags of `os.open`; follow a link only with `links`.

    Folders that this program wrote have no links. Those of a user's own data and keys may.
    """
    # Before it is opened, because that alone would trigger some devices.
    _check(path, path.stat(follow_symlinks=links))
    if not links:
        flags |= os.O_NOFOLLOW
    handle = os.open(path, flags | _ALWAYS)
    try:
        # Once more, of what was really opened.
        _check(path, os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return handle


def open_regular(path: Path, *, links: bool = False) -> BinaryIO:
    """Open an existing regular file for reading."""
    return os.fdopen(descriptor(path, os.O_RDONLY, links=links), "rb")


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        _refuse(path, errno.ELOOP, "it is a link: put the file itself there")
    if stat.S_ISDIR(found.st_mode):
        _refuse(path, errno.EISDIR, "it is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        _refuse(path, errno.EINVAL, "it is a pipe, socket or device, not a file")


def _refuse(path: Path, number: int, why: str) -> NoReturn:
    raise OSError(number, why, str(path))


def read_bytes(path: Path, max_bytes: int, *, links: bool = False) -> bytes:
    """Return the content of a regular file of at most `max_bytes`."""
    with open_regular(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            _refuse(path, errno.EFBIG, f"it has {size:,} bytes, and at most {max_bytes:,} are read")
        return file.read(size)


def read_text(path: Path, max_bytes: int, *, links: bool = False) -> str:
    """Return the text of a regular file of at most `max_bytes`; ValueError if it is not UTF-8."""
    return read_bytes(path, max_bytes, links=links).decode()


def lines(path: Path, max_bytes: int) -> Iterator[bytes]:
    """Yield the complete lines of a regular file, with their ends; each has at most `max_bytes`.

    The last line may be half of one, after a crash: it is left out.
    """
    with open_regular(path) as file:
        while line := file.readline(max_bytes + 1):
            if len(line) > max_bytes:
                _refuse(path, errno.EFBIG, f"it has a line of more than {max_bytes:,} bytes")
            if line.endswith(b"\n"):
                yield line


def check_folder(path: Path) -> None:
    """Raise UserError if the folder is a link: what is written there would end up elsewhere."""
    if path.is_symlink():
        raise UserError(f"{path} is a link to another folder: remove it, or put a folder there")
