"""Atomic file writes: a reader sees the old file or the complete new one, never a part."""

from __future__ import annotations

import errno
import os
import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedrfq.errors import UserError

# Errors of a disk that has no room left, or none for this user, or none in one file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    The content is flushed to the disk first. After an error, `path` is as it was before.
    """
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            # Before the rename: otherwise a power cut could leave the new name on an empty file.
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`; a crash leaves either the old file or the complete new one.

    A link at `path` is replaced, not followed.
    """
    with reporting_write_errors(path), replacing(path) as file:
        file.write(content)


def write_durably(path: Path, content: bytes) -> None:
    """Write `content` to `path`, in a folder that is made if need be; a power cut undoes neither.

    Only the user may open a folder that is made so.
    """
    folder = path.parent
    with reporting_write_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, content)
    with reporting_write_errors(folder):
        # The parent's names, too, because the folder itself may be new.
        sync_folder(folder)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files were created, renamed and removed in a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def reporting_write_errors(where: Path) -> Iterator[None]:
    """Turn an OSError raised while writing to `where` into a UserError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write to {where}: {reason}; {write_remedy(error)}") from error


def write_remedy(error: OSError) -> str:
    """Return what to do about an error in writing."""
    if error.errno in _FULL:
        return "free some space on its disk"
    # No option is named: servers and clients write here, too, and have no --out.
    return "check the folder and its permissions"


def raise_open_file_limit(wanted: int) -> int:
    """Raise this process's limit on open files to `wanted`, if allowed, and return the limit.

    Call it before opening many files: a process at its limit fails at an arbitrary later call.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if wanted <= soft:
        return soft
    soft = wanted
    if hard != resource.RLIM_INFINITY:
        soft = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
