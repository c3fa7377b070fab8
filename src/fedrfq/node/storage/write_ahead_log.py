"""The write-ahead log of a party: what it has said and what it relies on.

A message is on the disk here before anything that depends on it is sent. The log only grows, file
by file, until `compact` puts what still matters into a new first file. A crash at any moment leaves
a log that opens, with every completed flush and without the one that was under way.
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
from fedrfq.files.atomic import sync_folder, write_remedy
from fedrfq.files.regular import check_folder
from fedrfq.node.storage import disk, segments
from fedrfq.node.storage.log_reader import FOLDER, DamagedLog, LogContents, load, name

__all__ = ["DamagedLog", "DiskFull", "WriteAheadLog", "load"]
# A file is full at this size: small enough to read at once, large enough that there are few.
_SEGMENT_BYTES = 1 << 26


class DiskFull(UserError):
    """The disk is full or failing."""


class WriteAheadLog:
    """The log of one party: the folder `log/` in the party's folder, locked for this process.

    `messages` are all messages in the log, in order, and `size` is its size on the disk in bytes.
    `dropped` describes what was left of an interrupted flush when the log was opened ("" if
    nothing).
    """

    def __init__(
        self, folder: Path, run: bytes, segment_bytes: int, lock: int, contents: LogContents
    ) -> None:
        self.folder = folder
        self._log = folder / FOLDER
        self._run = run
        self._segment_bytes = segment_bytes
        self._lock = lock
        self.messages = contents.messages
        self.dropped = ""
        self._buffer: list[Message] = []
        self._failed: DiskFull | None = None
        # No file is open yet. Cleaning up comes first: appending after the rest of an interrupted
        # flush would turn it into damage.
        self._handle = -1
        self._clean_up(contents)
        if contents.header is None:
            self._begin_file(1, 1)
        else:
            self._head = contents.header
            self._seed = contents.header.seed
            self._check = contents.check
            self._end = contents.end
            self._handle = os.open(contents.files[-1], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self.size = sum(path.stat().st_size for path in contents.files)

    @classmethod
    def open(cls, folder: Path, run: bytes, *, segment_bytes: int = _SEGMENT_BYTES) -> Self:
        """Open the log of a party's folder, or begin one; raise DamagedLog if it was altered."""
        lock = locked(folder)
        try:
            # At the end of a run the folder is moved: the log must be in it, not elsewhere.
            check_folder(folder / FOLDER)
            with _disk_errors(folder / FOLDER):
                (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
                # The folder's own name must survive a crash, or all flushes in it are lost.
                sync_folder(folder)
                return cls(folder, run, segment_bytes, lock, load(folder / FOLDER, run))
        except BaseException:
            os.close(lock)
            raise

    @staticmethod
    def reset(folder: Path) -> Path:
        """Set a log aside as log.damaged-1, log.damaged-2 and so on, and return its new path.

        Nothing is ever removed. If there is no log, an empty folder records that it was missing.
        """
        # The lock makes sure that no running party loses its log this way.
        lock = locked(folder)
        log = folder / FOLDER
        try:
            number = 1
            while (aside := folder / f"{FOLDER}.damaged-{number}").exists():
                number += 1
            with _disk_errors(log):
                log.mkdir(exist_ok=True)
                log.rename(aside)
                sync_folder(folder)
            return aside
        finally:
            os.close(lock)

    def append(self, message: Message) -> None:
        """Add a message to the log; it is on the disk once `flush` returns."""
        self._raise_if_failed()
        self._buffer.append(message)
        self.messages.append(message)

    def flush(self) -> None:
        """Write everything appended to the disk, in one batch.

        Raises DiskFull if the disk does not take it. This object then never writes again: after a
        failed fsync the kernel may have discarded the data and still report success the next time.
        """
        self._raise_if_failed()
        if not self._buffer:
            return
        payload = segments.pack(self._buffer)
        with self._failing():
            # A file always takes its first batch, however large.
            is_empty = self._end <= segments.HEADER
            if not is_empty and self._end + segments.HEAD + len(payload) > self._segment_bytes:
                self._begin_file(self._head.number + 1, self._head.first)
            data, check = segments.batch(self._seed, self._check, payload)
            disk.write(self._handle, data)
        # Only after the sync: these describe what is on the disk.
        self._check = check
        self._end += len(data)
        self.size += len(data)
        self._buffer = []

    def compact(self, messages: Sequence[Message]) -> None:
        """Replace the whole log by these messages."""
        # The caller chose from `messages`, which includes what was only appended.
        self.flush()
        number = self._head.number + 1
        head = segments.fresh(self._run, number, number, self._check)
        data, check = segments.batch(head.seed, self._check, segments.pack(messages))
        with self._failing():
            # The order matters. The new first file is complete and synced under a temporary name,
            # then takes its real name, and only when that is durable do the older files go.
            temporary = self._log / f"{name(number)}.tmp"
            handle = disk.create(temporary, head.write() + data)
            temporary.rename(self._log / name(number))
            sync_folder(self._log)
            self._switch_to(handle, head, check, segments.HEADER + len(data))
            self.size = self._end
            self.messages = list(messages)
            # Names have a fixed width, so they compare like their numbers.
            self._remove([path for path in self._log.glob("*.log") if path.name < name(number)])

    def close(self) -> None:
        """Flush, and release the lock so that another process can open the log."""
        try:
            # After a failure the end of the file is unknown, and nothing may follow it.
            if self._failed is None:
                self.flush()
        finally:
            # The lock goes last: another process must not find the file still open.
            os.close(self._handle)
            os.close(self._lock)

    def _clean_up(self, contents: LogContents) -> None:
        """Remove what a crash left behind.

        That is the rest of a flush, a file that was just begun, or files that compaction had
        replaced. None of it had been synced when the party last sent something, or it is in the
        new first file, so nothing is lost that anyone has seen.
        """
        last = contents.files[-1] if contents.files else None
        unfinished = [path for path in contents.other if last is None or path > last]
        if last is not None and contents.end < contents.size:
            self.dropped = f"{last}: {contents.size - contents.end} bytes of an interrupted flush"
            disk.truncate(last, contents.end)
        elif unfinished:
            self.dropped = f"{unfinished[0]}: a file that had just been begun"
        self._remove([*contents.other, *self._log.glob("*.tmp")])

    def _begin_file(self, number: int, first: int) -> None:
        """Create a log file and make it the one that is appended to."""
        is_first = number == first
        before = 0 if is_first else self._check
        head = segments.fresh(self._run, number, first, before)
        handle = disk.create(self._log / name(number), head.write())
        # Before the first batch: a synced batch in a file whose name is lost would be lost with it.
        sync_folder(self._log)
        self._switch_to(handle, head, before, segments.HEADER)
        if is_first:
            self.size = 0
        self.size += self._end

    def _switch_to(self, handle: int, head: segments.Header, check: int, end: int) -> None:
        """Append to this file from now on."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = handle
        self._head = head
        self._seed = head.seed
        self._check = check
        self._end = end

    def _remove(self, paths: Sequence[Path]) -> None:
        # Oldest first: if a crash interrupts this, the files that are left are still consecutive.
        for path in sorted(paths):
            path.unlink()
        if paths:
            sync_folder(self._log)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Refuse all further use if the block fails, even by an interrupt.

        The file may then end with part of a batch, and only opening the log anew repairs that.
        """
        try:
            with _disk_errors(self._log):
                yield
        except DiskFull as error:
            self._failed = error
            raise
        except BaseException as error:
            self._failed = DiskFull(
                f"writing to {self._log} was interrupted ({error!r}): start this party again"
            )
            raise

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise DiskFull(str(self._failed))


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFull(
            f"{path} cannot be written ({error.strerror or error}), so this party signs nothing"
            f" more: {write_remedy(error)}, then start it again"
        ) from error


def locked(folder: Path) -> int:
    """Lock a party's folder for this process, until the handle is closed or the process dies."""
    return locks.acquire(
        folder, "a party's folder", "only one may run this party, so stop the other first"
    )
