"""The few operations the write-ahead log performs on a disk.

Each one has reached the disk for good when it returns, or raises OSError.
"""

from __future__ import annotations

import os
from pathlib import Path


def write(handle: int, data: bytes) -> None:
    """Write all of the data and wait until it is on the disk."""
    # os.write may take only a part, for instance just before the disk is full.
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]
    # fdatasync leaves out timestamps but not the file's length, so an append needs nothing more.
    os.fdatasync(handle)


def create(path: Path, data: bytes) -> int:
    """Create a file with this content and return a handle for appending to it.

    The file's name is durable only after `files.atomic.sync_folder`.
    """
    # O_EXCL: a log file is never reopened for writing from its start, not even by mistake.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        write(handle, data)
    except OSError:
        os.close(handle)
        raise
    return handle


def truncate(path: Path, size: int) -> None:
    """Cut a file off after `size` bytes."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # Synced: otherwise the old tail could return after a crash, behind newer batches.
        os.ftruncate(handle, size)
        os.fsync(handle)
    finally:
        os.close(handle)
