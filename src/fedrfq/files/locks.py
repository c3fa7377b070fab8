"""Exclusive locks on folders and files.

The operating system holds the lock and releases it when the process ends, however it ends, so no
stale lock file can be left behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedrfq.errors import UserError

# The files that this program holds, by device and number.
_HELD: set[tuple[int, int]] = set()


class Unlockable(UserError):
    """The file system does not support locks."""


def acquire(folder: Path, what: str, remedy: str) -> int:
    """Lock the folder (or file) for this process and return the handle; closing it unlocks.

    Raises UserError where that fails: `what` is what the user should name instead of a path that
    cannot be opened, `remedy` is what to do where another process holds the lock.
    """
    # A directory cannot be opened for writing; on NFS, a file must be to be locked exclusively.
    mode = os.O_RDWR
    try:
        # Even this fails where a folder above may not be entered.
        if folder.is_dir():
            mode = os.O_RDONLY
        # O_CLOEXEC: a child process must not inherit the lock and keep it.
        lock = os.open(folder, mode | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"cannot open {folder} ({error.strerror}): name {what}") from error
    try:
        # Without blocking: the user should hear at once that the folder is in use.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        ours = _identity(lock) in _HELD
        os.close(lock)
        if ours:
            raise UserError(
                f"{folder} is in use by this program itself: finish what it has begun with it, or "
                "leave its loop, and then begin anew"
            ) from error
        raise UserError(f"{folder} is in use by another process: {remedy}") from error
    except OSError as error:
        os.close(lock)
        raise Unlockable(
            f"cannot lock {folder} ({error.strerror}): use a folder on a local disk"
        ) from error
    return lock


@contextmanager
def exclusive(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Hold the lock of `acquire` during the block.

    Some clusters' file systems do not support locks. There the block runs without one.
    """
    lock = None
    with suppress(Unlockable):
        lock = acquire(folder, what, remedy)
    if lock is None:
        yield
        return
    held = _identity(lock)
    _HELD.add(held)
    try:
        yield
    finally:
        _HELD.discard(held)
        os.close(lock)


def _identity(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the folder's lock."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A shared lock fails only against an exclusive one, so two processes that merely ask
        # do not see each other.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
