"""The durable log of a party: what it has said and what it relies on, on disk before anything of it is sent.

It only grows, file by file, until `compact` puts what matters of it into a new first file. A crash at any moment leaves a log
that opens: with everything flushed, and without the flush that was under way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from fedrfq.consensus.messages import Message
from fedrfq.errors import UserError
from fedrfq.files import locks
from fedrfq.node.storage import disk, segments
from fedrfq.node.storage.log_reader import FOLDER, DamagedLog, LogContents, load, name

__all__ = ["DamagedLog", "DiskFull", "WriteAheadLog", "load"]
_SEGMENT = 1 << 26  # bytes from which on a new file is begun


class DiskFull(UserError):
    """The disk takes nothing more, or fails."""


class WriteAheadLog:
    """Of a party's folder; the log is `log/` in it, and no other process has it. `messages` is all that is in the log, in
    order, `size` its bytes on the disk, `dropped` what was found of a flush that never ended ("" if nothing)."""

    def __init__(
        self, folder: Path, run: bytes, segment_bytes: int, lock: int, found: LogContents
    ) -> None:
        self.folder = folder
        self._log = folder / FOLDER
        self._run = run
        self._most = segment_bytes
        self._lock = lock
        self.messages = found.messages
        self.dropped = ""
        self._buffer: list[Message] = []
        self._failed: DiskFull | None = None
        self._handle = -1
        self._mend(found)
        if found.header is None:
            self._begin(1, 1)
        else:
            self._head = found.header
            self._check = found.check
            self._end = found.end
            self._handle = os.open(found.files[-1], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self.size = sum(path.stat().st_size for path in found.files)

    @classmethod
    def open(cls, folder: Path, run: bytes, *, segment_bytes: int = _SEGMENT) -> Self:
        """The log of an earlier life, or a new one. Damaged where it is not what was written."""
        lock = locked(folder)
        try:
            with _failing(folder / FOLDER):
                (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
                disk.sync(folder)
                return cls(folder, run, segment_bytes, lock, load(folder / FOLDER, run))
        except BaseException:
            os.close(lock)
            raise

    @staticmethod
    def reset(folder: Path) -> Path:
        """Set a log aside, as log.damaged-1 and so on; where it is now. Nothing is ever removed, and of a log that is not
        there an empty folder says that it was missed."""
        lock = locked(folder)
        log = folder / FOLDER
        try:
            number = 1
            while (aside := folder / f"{FOLDER}.damaged-{number}").exists():
                number += 1
            with _failing(log):
                log.mkdir(exist_ok=True)
                log.rename(aside)
                disk.sync(folder)
            return aside
        finally:
            os.close(lock)

    def append(self, message: Message) -> None:
        """Say that this must be kept; it is once `flush` returns."""
        self._check_failed()
        self._buffer.append(message)
        self.messages.append(message)

    def flush(self) -> None:
        """Everything appended, on the disk. Full where the disk does not take it: then nothing more ever is, in this life."""
        self._check_failed()
        if not self._buffer:
            return
        payload = segments.packed(self._buffer)
        with self._failing():
            if (
                self._end + segments.HEAD + len(payload) > self._most
                and self._end > segments.HEADER
            ):
                self._begin(self._head.number + 1, self._head.first)
            data, check = segments.batch(self._head.seed, self._check, payload)
            disk.write(self._handle, data)
        self._check = check
        self._end = self._end + len(data)
        self.size = self.size + len(data)
        self._buffer = []

    def compact(self, essence: Sequence[Message]) -> None:
        """Only these messages from now on: in a new first file, whole before it takes its name. Then the older ones go."""
        self.flush()
        number = self._head.number + 1
        head = segments.fresh(self._run, number, number, self._check)
        data, check = segments.batch(head.seed, self._check, segments.packed(essence))
        with self._failing():
            beside = self._log / f"{name(number)}.tmp"
            handle = disk.create(beside, head.write() + data)
            beside.rename(self._log / name(number))
            disk.sync(self._log)
            self._turn(handle, head, check, segments.HEADER + len(data))
            self.size = self._end
            self.messages = list(essence)
            self._remove([path for path in self._log.glob("*.log") if path.name < name(number)])

    def close(self) -> None:
        """Flush, and let another process have it."""
        try:
            if self._failed is None:
                self.flush()
        finally:
            os.close(self._handle)
            os.close(self._lock)

    def _mend(self, found: LogContents) -> None:
        """What a crash left: the tail of a flush, a file that was just begun, files that a newer one stands for."""
        unborn = [path for path in found.other if not found.files or path > found.files[-1]]
        if found.end < found.size:
            self.dropped = (
                f"{found.files[-1]}: {found.size - found.end} bytes of a flush that never ended"
            )
            disk.cut(found.files[-1], found.end)
        elif unborn:
            self.dropped = f"{unborn[0]}: a file that was just begun"
        self._remove([*found.other, *self._log.glob("*.tmp")])

    def _begin(self, number: int, first: int) -> None:
        """A new file."""
        if number == first:
            before = 0
        else:
            before = self._check
        head = segments.fresh(self._run, number, first, before)
        handle = disk.create(self._log / name(number), head.write())
        disk.sync(self._log)
        self._turn(handle, head, before, segments.HEADER)
        if number == first:
            self.size = self._end
        else:
            self.size = self.size + self._end

    def _turn(self, handle: int, head: segments.Header, check: int, end: int) -> None:
        """To the file that is appended to from now on."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = handle
        self._head = head
        self._check = check
        self._end = end

    def _remove(self, paths: Sequence[Path]) -> None:
        """Oldest first, so that what is left is still the end of a log."""
        for path in sorted(paths):
            path.unlink()
        if paths:
            disk.sync(self._log)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What is cut short, by an interrupt too, is left in a state that only opening it anew mends."""
        try:
            with _failing(self._log):
                yield
        except BaseException as error:
            if isinstance(error, DiskFull):
                self._failed = error
            else:
                self._failed = DiskFull(f"{self._log} was cut short ({error!r}): start again")
            raise

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise DiskFull(str(self._failed))


@contextmanager
def _failing(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{where} cannot be written ({error.strerror or error})"
        raise DiskFull(
            f"{why}: nothing more is signed; make room or replace the disk, and start again"
        ) from error


def locked(folder: Path) -> int:
    """A party's folder, for this process alone until the handle is closed or the process dies."""
    return locks.locked(folder, "a party's folder", "a party runs once")
