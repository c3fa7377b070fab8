"""A folder, or a file, for one process alone. The lock is the system's: it goes with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedrfq.errors import UserError


class Unlockable(UserError):
    """The disk knows no locks."""


def locked(folder: Path, what: str, remedy: str) -> int:
    """The folder, for this process alone until the handle is closed or the process dies. UserError where it cannot be had:
    `what` should be named instead of a folder that cannot be opened, `remedy` is for one that another process has."""
    try:
        lock = os.open(folder, (os.O_RDONLY if folder.is_dir() else os.O_RDWR) | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{folder} cannot be opened ({error.strerror}): name {what}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise UserError(f"{folder} is in use by another process: {remedy}") from error
    except OSError as error:
        os.close(lock)
        raise Unlockable(
            f"{folder} cannot be locked ({error.strerror}): use one on a disk of this machine"
        ) from error
    return lock


@contextmanager
def alone(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """As `locked`, for a while. Where the disk knows no locks, as some of clusters', nobody is kept away."""
    lock = -1
    with suppress(Unlockable):
        lock = locked(folder, what, remedy)
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def taken(folder: Path) -> bool:
    """Whether a process has it."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(place)
    return False
