"""The few things the durable log does to a disk. Each either has happened for good when it returns, or raises OSError."""

from __future__ import annotations

import os
from pathlib import Path


def write(handle: int, data: bytes) -> None:
    """All of the data, and on the disk."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    os.fdatasync(handle)


def create(path: Path, data: bytes) -> int:
    """A new file, open to be appended to; its folder is still to be synced."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        write(handle, data)
    except OSError:
        os.close(handle)
        raise
    return handle


def cut(path: Path, size: int) -> None:
    """Forget what comes after."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(handle, size)
        os.fsync(handle)
    finally:
        os.close(handle)


def sync(folder: Path) -> None:
    """What was created, renamed and removed in a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
