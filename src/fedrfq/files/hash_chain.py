"""A file that only grows, each entry bound to the one before: whoever changes a byte changes every hash after it.

An entry is its payload's length (u32), the hash the entry before ends with (the first one's: a root known from elsewhere),
the payload, and the SHA-256 of all of these.
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

_LENGTH = 4
_HASH = 32
HEAD = _LENGTH + _HASH  # bytes before a payload
MOST = 1 << 30  # bytes of a payload


class Entry(NamedTuple):
    """A payload and where its entry begins."""

    offset: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + HEAD + len(self.payload) + _HASH

    def at(self, place: int) -> int:
        """Where in the file a byte of the payload is."""
        return self.offset + HEAD + place


class BrokenChain(Exception):
    """The file does not hold from this offset on, and why. `last`: nothing comes after the entry there."""

    def __init__(self, offset: int, why: str, last: bool = False) -> None:
        super().__init__(why)
        self.offset = offset
        self.last = last


def framed(previous: bytes, payload: bytes) -> bytes:
    """The bytes of an entry."""
    assert len(previous) == _HASH
    assert len(payload) <= MOST
    body = len(payload).to_bytes(_LENGTH, "little") + previous + payload
    return body + hashlib.sha256(body).digest()


class HashChain:
    """Such a file, open to be appended to; what is there already is taken to be whole."""

    def __init__(self, path: Path, root: bytes) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self.close = finalize(
            self, os.close, self._file
        )  # by its owner, or when nobody has it any more
        self._size = os.fstat(self._file).st_size
        if self._size:
            self._last = os.pread(self._file, _HASH, self._size - _HASH)
        else:
            self._last = root

    def append(self, payload: bytes) -> None:
        """One more entry; or nothing of it, where it cannot be written: OSError."""
        self._open()
        entry = framed(self._last, payload)
        try:
            left = memoryview(entry)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size = self._size + len(entry)
        self._last = entry[-_HASH:]

    def sync(self) -> None:
        """All of it, on the disk."""
        self._open()
        os.fsync(self._file)

    def _open(self) -> None:
        """Once closed, the number by which the system knew the file may be another file's."""
        if not self.close.alive:
            raise ValueError("the file is closed")


def append(path: Path, root: bytes, payload: bytes) -> None:
    """One more entry of a file that is not open."""
    with closing(HashChain(path, root)) as chain:
        chain.append(payload)


def entries(path: Path, root: bytes) -> Iterator[Entry]:
    """The entries in order, each checked; Broken at the first that does not hold."""
    with path.open("rb") as file:
        size = path.stat().st_size
        offset = 0
        previous = root
        while offset < size:
            whole = _whole(file, offset, size)
            body = memoryview(whole)[:-_HASH]
            found = whole[-_HASH:]
            if hashlib.sha256(body).digest() != found:
                raise BrokenChain(
                    offset, "the entry's hash is not that of its bytes", offset + len(whole) == size
                )
            if body[_LENGTH:HEAD] != previous:
                if offset:
                    after = "does not follow from the entry before it"
                else:
                    after = "is of another run"
                raise BrokenChain(offset, f"the entry {after}")
            yield Entry(offset, bytes(body[HEAD:]))
            offset = offset + len(whole)
            previous = found


def settled(path: Path, root: bytes) -> Iterator[Entry]:
    """The entries in order, less a last one that was being written when all stopped."""
    try:
        yield from entries(path, root)
    except BrokenChain as error:
        if not error.last:
            raise


def cut(path: Path, root: bytes, number: int) -> None:
    """Forget all entries but the first ones, which must hold; a torn last one, too."""
    done = 0
    end = 0
    with suppress(BrokenChain):
        for entry in islice(entries(path, root), number):
            done = done + 1
            end = entry.end
    if done < number:
        raise UserError(
            f"{path} has {done} whole entries, not {number}: restore it, or start the run anew"
        )
    os.truncate(path, end)


def _whole(file: BinaryIO, offset: int, size: int) -> bytes:
    """All bytes of the entry at an offset; a length that the file does not have is refused before anything is read."""
    file.seek(offset)
    length = int.from_bytes(file.read(_LENGTH), "little")
    end = offset + HEAD + length + _HASH
    if length > MOST or end > size:
        raise BrokenChain(
            offset,
            f"the entry is torn: {size - offset} bytes are there, it says {end - offset}",
            True,
        )
    file.seek(offset)
    return file.read(end - offset)
