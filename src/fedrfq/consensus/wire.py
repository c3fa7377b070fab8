"""Write integers and byte strings, and read them back from bytes that anyone may have sent.

All integers are little-endian and unsigned. A reader checks every size against the bytes that are
there before it allocates anything, so a forged length costs its receiver nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


class Refused(Exception):
    """Bytes or a message that cannot be accepted; the text says why."""


class Reader:
    """A cursor over untrusted bytes. Every method raises `Refused` where too few bytes are left."""

    def __init__(self, data: bytes) -> None:
        self.data = data
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

    def count(self, min_size: int) -> int:
        """Read the number of items that follow, each of which takes at least `min_size` bytes."""
        count = self.u32()
        # Checked before anything is allocated: a sender may announce 2³² items for free.
        if count * min_size > self.left():
            raise Refused(
                f"{count} items announced at offset {self.at}, but only {self.left()} bytes left"
            )
        return count

    def many(self, min_size: int, read: Callable[[], T]) -> tuple[T, ...]:
        """Read items preceded by their number, each of which takes at least `min_size` bytes."""
        # A list first: making a tuple from a generator takes longer.
        return tuple([read() for _ in range(self.count(min_size))])

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
