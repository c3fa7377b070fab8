"""Frames: a length in four bytes, then so many bytes. An empty frame says only that its sender is alive."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
HEADER = _LENGTH.size
EMPTY = _LENGTH.pack(0)


class Oversized(Exception):
    """A frame was announced that is larger than its sender may send."""


def header(data: bytes) -> bytes:
    """What stands before the data."""
    return _LENGTH.pack(len(data))


class Frames:
    """Cuts a stream into its frames. Keeps what is not yet whole: never more than has come, or than one frame and a piece."""

    __slots__ = ("_held", "_most")

    def __init__(self, most: int) -> None:
        self._most = most  # bytes of a frame
        self._held = bytearray()

    def take(self, piece: bytes) -> Iterator[bytes]:
        """The frames that become whole by this piece. Raises `Oversized` at the header, before the frame has come."""
        held = self._held
        start = 0
        if (
            not held
            and len(piece) >= HEADER
            and len(piece) == HEADER + _LENGTH.unpack_from(piece)[0] <= HEADER + self._most
        ):
            yield piece[HEADER:]  # one frame, neither more nor less: so comes most
            return
        held += piece
        while len(held) >= start + HEADER:
            size = _LENGTH.unpack_from(held, start)[0]
            if size > self._most:
                raise Oversized
            end = start + HEADER + size
            if len(held) < end:
                break
            yield bytes(memoryview(held)[start + HEADER : end])
            start = end
        del held[:start]
