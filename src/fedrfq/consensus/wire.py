"""Write integers and byte strings, and read them back from bytes that anyone may have sent.

All integers are little-endian and unsigned. A reader checks every size against the bytes that are
there before it allocates anything, so a forged length costs its receiver nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


class Refused(Exception):
    """Bytes or a message that cannot be accepted; the text says why."""


class Sizes(NamedTuple):
    """The most that an honest message can hold (see `sizes`)."""

    servers: int  # votes in a certificate; lists, and view changes, in a proposal
    entries: int  # uploads in a list or set
    by_kind: Mapping[int, int]  # bytes of a message of each kind


_MAX_COUNT = 2**32 - 1
_UNLIMITED = Sizes(_MAX_COUNT, _MAX_COUNT, {})


class Reader:
    """A cursor over untrusted bytes. Every method raises `Refused` where too few bytes are left.

    `sizes` bounds the numbers of items: reading an item costs far more than its bytes.
    """

    def __init__(self, data: bytes, sizes: Sizes = _UNLIMITED) -> None:
        self.data = data
        self.sizes = sizes
        self.at = 0

    def left(self) -> int:
        """Return how many bytes have not been read yet."""
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        start = self.at
        end = start + size
        if end > len(self.data):
            raise Refused(
                f"expected {size} bytes at offset {start}, but only {self.left()} are left"
            )
        self.at = end
        return self.data[start:end]

    def u8(self) -> int:
        """Read an integer of one byte."""
        return int(_U8.unpack(self.take(1))[0])

    def u16(self) -> int:
        """Read an integer of two bytes."""
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        """Read an integer of four bytes."""
        return int(_U32.unpack(self.take(4))[0])

    def sized(self) -> bytes:
        """Read a byte string that is preceded by its length."""
        return self.take(self.u32())

    def count(self, min_size: int, most: int = _MAX_COUNT) -> int:
        """Read the number of items that follow: at most so many, of at least `min_size` bytes."""
        count = self.u32()
        if count > most:
            raise Refused(f"{count} items at offset {self.at}: at most {most} are expected")
        # Checked before anything is allocated: a sender may announce 2³² items for free.
        if count * min_size > self.left():
            raise Refused(
                f"{count} items announced at offset {self.at}, but only {self.left()} bytes left"
            )
        return count

    def many(self, min_size: int, read: Callable[[], T], most: int = _MAX_COUNT) -> tuple[T, ...]:
        """Read items preceded by their number: at most so many, of at least `min_size` bytes."""
        # A list first: making a tuple from a generator takes longer.
        return tuple([read() for _ in range(self.count(min_size, most))])

    def end(self) -> None:
        """Check that all bytes have been read."""
        if self.left():
            raise Refused(f"{self.left()} unexpected bytes at the end")


def u8(value: int) -> bytes:
    """Write an integer of one byte."""
    return _U8.pack(value)


def u16(value: int) -> bytes:
    """Write an integer of two bytes."""
    return _U16.pack(value)


def u32(value: int) -> bytes:
    """Write an integer of four bytes."""
    return _U32.pack(value)


def sized(data: bytes) -> bytes:
    """Write a byte string preceded by its length."""
    return _U32.pack(len(data)) + data
