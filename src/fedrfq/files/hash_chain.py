"""An append-only file whose entries are chained by hashes: changing a byte breaks every later one.

An entry is its payload's length (u32), the hash that ends the previous entry (for the first entry:
a root known from elsewhere), the payload, and the SHA-256 of all of these.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple
from weakref import finalize

from fedrfq.errors import UserError
from fedrfq.files.regular import descriptor, open_regular

_LENGTH_BYTES = 4
_HASH_BYTES = 32
# What precedes a payload: its length and the previous entry's hash.
_HEAD_BYTES = _LENGTH_BYTES + _HASH_BYTES
MAX_PAYLOAD_BYTES = 1 << 30


class Entry(NamedTuple):
    """A payload and the offset in the file where its entry begins."""

    offset: int
    payload: bytes

    @property
    def end(self) -> int:
        """The offset just past the entry."""
        return self.offset + _HEAD_BYTES + len(self.payload) + _HASH_BYTES

    def at(self, place: int) -> int:
        """Return the offset in the file of byte `place` of the payload."""
        return self.offset + _HEAD_BYTES + place


class BrokenChain(Exception):
    """The file is damaged from `offset` on; `last` says that nothing follows the damaged entry.

    Damage to the last entry is what a crash in the middle of a write leaves behind.
    """

    def __init__(self, offset: int, why: str, last: bool = False) -> None:
        super().__init__(why)
        self.offset = offset
        self.last = last


def framed(previous: bytes, payload: bytes) -> bytes:
    """Return the bytes of the entry that follows one whose hash is `previous`."""
    assert len(previous) == _HASH_BYTES
    assert len(payload) <= MAX_PAYLOAD_BYTES
    body = len(payload).to_bytes(_LENGTH_BYTES, "little") + previous + payload
    return body + hashlib.sha256(body).digest()


class HashChain:
    """A hash chain open for appending. The entries already in the file are not checked again."""

    def __init__(self, path: Path, root: bytes) -> None:
        self._file = descriptor(path, os.O_RDWR | os.O_APPEND)
        # Called by the owner, or by the garbage collector when there is no owner left.
        self.close = finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        # The last entry ends with its own hash, so nothing else needs to be read.
        self._last_hash = root
        if self._size:
            self._last_hash = os.pread(self._file, _HASH_BYTES, self._size - _HASH_BYTES)

    def append(self, payload: bytes) -> None:
        """Append an entry. If writing fails, OSError is raised and nothing of it stays."""
        self._check_open()
        entry = framed(self._last_hash, payload)
        try:
            # A write may take only a part, for example when the disk is nearly full.
            rest = memoryview(entry)
            while rest:
                written = os.write(self._file, rest)
                rest = rest[written:]
        except OSError:
            # A partial entry would make every later one look broken.
            os.ftruncate(self._file, self._size)
            raise
        # Only now, so that a failed append leaves the chain as it was.
        self._size += len(entry)
        self._last_hash = entry[-_HASH_BYTES:]

    def sync(self) -> None:
        """Flush all entries to the disk."""
        self._check_open()
        os.fsync(self._file)

    def _check_open(self) -> None:
        # The system reuses descriptors: after a close, this one may belong to another file.
        if not self.close.alive:
            raise ValueError("the file is closed")


def append(path: Path, root: bytes, payload: bytes) -> None:
    """Append one entry to a file that is not open."""
    with closing(HashChain(path, root)) as chain:
        chain.append(payload)


def entries(path: Path, root: bytes) -> Iterator[Entry]:
    """Yield the entries in order, checking each; raise BrokenChain at the first damaged one."""
    with open_regular(path) as file:
        # The size at the beginning: what a writer appends meanwhile is not read.
        size = os.fstat(file.fileno()).st_size
        offset = 0
        previous = root
        while offset < size:
            entry = _read_entry(file, offset, size)
            end = offset + len(entry)
            body = memoryview(entry)[:-_HASH_BYTES]
            stored_hash = entry[-_HASH_BYTES:]
            # The entry itself before its link: a torn write must be reported as such.
            if hashlib.sha256(body).digest() != stored_hash:
                raise BrokenChain(offset, "the entry's hash is not that of its bytes", end == size)
            if body[_LENGTH_BYTES:_HEAD_BYTES] != previous:
                why = "the entry does not follow from the entry before it"
                if offset == 0:
                    why = "the entry is of another run"
                raise BrokenChain(offset, why)
            yield Entry(offset, bytes(body[_HEAD_BYTES:]))
            offset = end
            previous = stored_hash


def settled(path: Path, root: bytes) -> Iterator[Entry]:
    """Yield the entries in order, leaving out a last one that a crash interrupted."""
    try:
        yield from entries(path, root)
    except BrokenChain as error:
        if not error.last:
            raise


def cut(path: Path, root: bytes, number: int) -> None:
    """Keep the first `number` entries, which must be intact, and drop everything after them."""
    # What follows the last wanted entry may be damaged: it is dropped anyway.
    intact = 0
    end = 0
    with suppress(BrokenChain):
        for entry in islice(entries(path, root), number):
            intact += 1
            end = entry.end
    if intact < number:
        raise UserError(
            f"{path} has {intact} intact entries, expected {number}: "
            "restore the file or start the run again"
        )
    os.truncate(path, end)


def _read_entry(file: BinaryIO, offset: int, size: int) -> bytes:
    """Return the bytes of the entry at `offset` in a file of `size` bytes."""
    file.seek(offset)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    end = offset + _HEAD_BYTES + length + _HASH_BYTES
    # Checked before reading: a damaged length must not make us allocate gigabytes.
    if length > MAX_PAYLOAD_BYTES or end > size:
        found = size - offset
        stated = end - offset
        raise BrokenChain(
            offset, f"the entry is torn: it states {stated} bytes, the file has {found}", last=True
        )
    file.seek(offset)
    return file.read(end - offset)
