"""A file of the durable log: a header that binds it to its run and to the file before it, then batches, one a flush.

    header   tag and version, run, number, first, before, salt; their CRC-32
    batch    mark, length, before, CRC-32 of the payload; CRC-32 of these; the payload: messages, each after its length

`before` is the payload's checksum of the batch before, across files: none can be missing, moved or older than the rest. Every
checksum starts from the header's, and its salt is random: what a client uploads is never taken for a batch.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from fedrfq.consensus.messages import Message, decode
from fedrfq.consensus.wire import Reader, Refused, sized

MOST = 1 << 30  # bytes of a file that is read
_TAG = b"fedrfqL1"
_MARK = b"\xf5log"
_HEADER = struct.Struct("<8s32sIII8s")
_BATCH = struct.Struct("<4sIII")
_CRC = struct.Struct("<I")
# bytes of a file's header, and of a batch's
HEADER = _HEADER.size + _CRC.size
HEAD = _BATCH.size + _CRC.size


class Header(NamedTuple):
    """`first` is the number of the file that the log starts with; this one's own, and it begins with all that is left of what
    was before."""

    run: bytes
    number: int
    first: int
    before: int
    salt: bytes

    def write(self) -> bytes:
        data = _HEADER.pack(_TAG, *self)
        return data + _CRC.pack(zlib.crc32(data))

    @property
    def seed(self) -> int:
        return zlib.crc32(_HEADER.pack(_TAG, *self))


class SegmentContents(NamedTuple):
    """What a file holds: the batches with their offsets, where the last whole one ends, and its checksum."""

    batches: list[tuple[int, bytes]]
    end: int
    check: int


class BadSegment(Exception):
    """A file does not hold from this offset on, and why."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


def fresh(run: bytes, number: int, first: int, before: int) -> Header:
    return Header(run, number, first, before, secrets.token_bytes(8))


def header(data: bytes) -> Header | None:
    """That of a file; none where it is not whole."""
    if len(data) < HEADER or _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(
        data[: _HEADER.size]
    ):
        return None
    tag, *rest = _HEADER.unpack_from(data)
    if tag == _TAG:
        return Header(*rest)
    return None


def batch(seed: int, before: int, payload: bytes) -> tuple[bytes, int]:
    """The bytes of a batch, and its checksum."""
    if len(payload) > MOST - HEADER - HEAD:
        raise ValueError(f"{len(payload)} bytes at once: no file with them could be read again")
    check = zlib.crc32(payload, seed)
    head = _BATCH.pack(_MARK, len(payload), before, check)
    return head + _CRC.pack(zlib.crc32(head, seed)) + payload, check


def found(data: bytes, head: Header) -> SegmentContents:
    """The batches of a file. What comes after the last whole one may be a flush that never ended; with a whole batch behind
    it, it is damage: Bad."""
    batches = []
    at = HEADER
    before = head.before
    while (length := _length(data, at, head.seed, before)) is not None:
        batches.append((at, data[at + HEAD : at + HEAD + length]))
        before = _BATCH.unpack_from(data, at)[3]
        at += HEAD + length
    if _any_after(data, at, head.seed):
        raise BadSegment(
            at, "the bytes are not those that were written, and whole records come after them"
        )
    return SegmentContents(batches, at, before)


def _length(data: bytes, at: int, seed: int, before: int | None = None) -> int | None:
    """Of the payload of the batch that stands here whole, after that one; none where there is none."""
    if len(data) < at + HEAD or _CRC.unpack_from(data, at + _BATCH.size)[0] != zlib.crc32(
        data[at : at + _BATCH.size], seed
    ):
        return None
    _, length, its_before, check = _BATCH.unpack_from(data, at)
    if length > len(data) - at - HEAD or (before is not None and its_before != before):
        return None
    payload = memoryview(data)[at + HEAD : at + HEAD + length]
    if zlib.crc32(payload, seed) == check:
        return int(length)
    return None


def _any_after(data: bytes, at: int, seed: int) -> bool:
    """Whether a whole batch begins here or later. The heads' checksums come first, so that looking is cheap."""
    place = data.find(_MARK, at)
    while place >= 0:
        if _length(data, place, seed) is not None:
            return True
        place = data.find(_MARK, place + 1)
    return False


def packed(messages: Iterable[Message]) -> bytes:
    return b"".join([sized(message.wire) for message in messages])


def unpacked(at: int, payload: bytes, run: bytes) -> list[Message]:
    """The messages of a batch that begins at this offset of its file."""
    reader = Reader(payload)
    messages = []
    while reader.left():
        place = at + HEAD + reader.at
        try:
            messages.append(decode(reader.sized()))
        except Refused as error:
            raise BadSegment(place, f"this is no message ({error})") from error
        if messages[-1].run != run:
            raise BadSegment(place, "the message is of another run")
    return messages
