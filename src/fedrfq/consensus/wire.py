"""Reading bytes that anyone may have sent: every size is checked before anything is made of it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


class Refused(Exception):
    """Bytes, or a message, that cannot be taken, and why."""


class Reader:
    """A cursor over untrusted bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        start = self.at
        end = self.at + size
        if end > len(self.data):
            raise Refused(f"{size} bytes expected at offset {start}, {self.left()} are there")
        self.at = end
        return self.data[start:end]

    def u8(self) -> int:
        return int(_U8.unpack(self.take(1))[0])

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def sized(self) -> bytes:
        """Bytes that come after their length."""
        return self.take(self.u32())

    def number(self, least: int) -> int:
        """Of items that follow, each of at least so many bytes."""
        number = self.u32()
        if number * least > self.left():
            raise Refused(
                f"{number} items announced at offset {self.at}, only {self.left()} bytes are left"
            )
        return number

    def many(self, least: int, read: Callable[[], T]) -> tuple[T, ...]:
        """Items that come after their number, each of at least so many bytes."""
        return tuple([read() for _ in range(self.number(least))])

    def end(self) -> None:
        if self.left():
            raise Refused(f"{self.left()} bytes too many")


def u8(value: int) -> bytes:
    return _U8.pack(value)


def u16(value: int) -> bytes:
    return _U16.pack(value)


def u32(value: int) -> bytes:
    return _U32.pack(value)


def sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data
