"""Frames: a length in four bytes, then that many bytes. An empty frame is a sign of life."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
HEADER = _LENGTH.size
EMPTY = _LENGTH.pack(0)


class Oversized(Exception):
    """A frame was announced that is larger than its sender may send."""


def header(data: bytes) -> bytes:
    """Return what precedes the data in its frame."""
    return _LENGTH.pack(len(data))


class Frames:
    """Cuts a stream into its frames.

    It keeps what is incomplete. That is never more than what has arrived, so an announced length
    costs no memory, and never more than one frame and one piece.
    """

    __slots__ = ("_incomplete", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._incomplete = bytearray()

    def take(self, piece: bytes) -> Iterator[bytes]:
        """Yield the frames that this piece completes.

        Raises `Oversized` as soon as a header announces too large a frame.
        """
        held = self._incomplete
        # The usual case, without a copy through the buffer: the piece is exactly one frame.
        if not held and len(piece) >= HEADER:
            size = _LENGTH.unpack_from(piece)[0]
            if size == len(piece) - HEADER and size <= self._max_bytes:
                yield piece[HEADER:]
                return
        held += piece
        start = 0
        while len(held) >= start + HEADER:
            size = _LENGTH.unpack_from(held, start)[0]
            # At the header, before any of the frame is kept.
            if size > self._max_bytes:
                raise Oversized
            end = start + HEADER + size
            # The rest of this frame has not arrived yet.
            if len(held) < end:
                break
            yield bytes(memoryview(held)[start + HEADER : end])
            start = end
        # Once per piece, not per frame: deleting from the front moves everything after it.
        del held[:start]
