"""The format of a write-ahead log file: a header, then one batch of messages per flush.

    header   tag and version, run, number, first, before, salt; their CRC-32
    batch    mark, length, before, CRC-32 of the payload; CRC-32 of these four; the payload,
             which is messages, each preceded by its length

The header binds a file to its run and to the file before it. `before` is the payload checksum of
the previous batch, across files: no batch can be missing, moved or older than the rest without
being noticed. Every checksum is seeded with the header's own, and the header contains a random
salt: a client cannot upload bytes that would later be taken for a batch.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from fedrfq.consensus.messages import Message, decode
from fedrfq.consensus.wire import Reader, Refused, sized

# Files are read whole, so this bounds the memory that a damaged or planted file can cost.
MAX_FILE_BYTES = 1 << 30
_TAG = b"fedrfqL1"
# No byte of UTF-8 text is 0xf5, so a mark is rare in what it is searched for in.
_MARK = b"\xf5log"
_HEADER = struct.Struct("<8s32sIII8s")
_BATCH = struct.Struct("<4sIII")
# CRC-32 finds accidents, not attackers: whoever can write to this disk has the party's keys, too.
_CRC = struct.Struct("<I")
# Bytes of a file's header, and of the head in front of a batch's payload.
HEADER = _HEADER.size + _CRC.size
HEAD = _BATCH.size + _CRC.size


class Header(NamedTuple):
    """The header of a log file.

    `number` is the file's own number, `first` that of the file the log starts with. They are equal
    in a first file, which begins with everything that is left of the files before it.
    """

    run: bytes
    number: int
    first: int
    before: int
    salt: bytes

    def write(self) -> bytes:
        """Return the header as it stands in the file."""
        data = _HEADER.pack(_TAG, *self)
        return data + _CRC.pack(zlib.crc32(data))

    @property
    def seed(self) -> int:
        """The value that every checksum in the file starts from."""
        return zlib.crc32(_HEADER.pack(_TAG, *self))


class SegmentContents(NamedTuple):
    """What a file holds: its batches with their offsets, where the last one ends, its checksum."""

    batches: list[tuple[int, bytes]]
    end: int
    check: int


class BadSegment(Exception):
    """A file is not what was written, from this offset on."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


def fresh(run: bytes, number: int, first: int, before: int) -> Header:
    """Return the header of a new file, with a new salt."""
    return Header(run, number, first, before, secrets.token_bytes(8))


def parse_header(data: bytes) -> Header | None:
    """Return the header of a file, or None if it is incomplete or damaged."""
    if len(data) < HEADER:
        return None
    (checksum,) = _CRC.unpack_from(data, _HEADER.size)
    if checksum != zlib.crc32(data[: _HEADER.size]):
        return None
    tag, *fields = _HEADER.unpack_from(data)
    if tag != _TAG:
        return None
    return Header(*fields)


def batch(seed: int, before: int, payload: bytes) -> tuple[bytes, int]:
    """Return the bytes of a batch, and its checksum."""
    # Better no vote than one in a file that cannot be read again.
    if len(payload) > MAX_FILE_BYTES - HEADER - HEAD:
        raise ValueError(
            f"one flush has {len(payload)} bytes; a file with more than {MAX_FILE_BYTES} bytes"
            " could not be read again"
        )
    check = zlib.crc32(payload, seed)
    head = _BATCH.pack(_MARK, len(payload), before, check)
    return head + _CRC.pack(zlib.crc32(head, seed)) + payload, check


def read_batches(data: bytes, head: Header) -> SegmentContents:
    """Return the batches of a file; raise BadSegment where it is damaged.

    Bytes after the last complete batch may be a flush that a crash interrupted. If a complete batch
    follows them they are damage: a flush begins only after the one before it has been synced.
    """
    batches = []
    position = HEADER
    before = head.before
    while (length := _payload_length(data, position, head.seed, before)) is not None:
        start = position + HEAD
        batches.append((position, data[start : start + length]))
        # The last field of the head is the checksum that the next batch refers to.
        before = _BATCH.unpack_from(data, position)[3]
        position = start + length
    if _has_batch_after(data, position, head.seed):
        raise BadSegment(
            position, "these bytes differ from what was written, and intact records follow them"
        )
    return SegmentContents(batches, position, before)


def _payload_length(data: bytes, at: int, seed: int, before: int | None = None) -> int | None:
    """Return the payload length of the complete batch at this offset, or None if there is none.

    With `before`, the batch must also follow the one that has this checksum.
    """
    if len(data) < at + HEAD:
        return None
    (checksum,) = _CRC.unpack_from(data, at + _BATCH.size)
    if checksum != zlib.crc32(data[at : at + _BATCH.size], seed):
        return None
    _, length, previous, check = _BATCH.unpack_from(data, at)
    # The head was written, its payload not completely: an interrupted flush.
    if length > len(data) - at - HEAD:
        return None
    if before is not None and previous != before:
        return None
    payload = memoryview(data)[at + HEAD : at + HEAD + length]
    if zlib.crc32(payload, seed) != check:
        return None
    return int(length)


def _has_batch_after(data: bytes, at: int, seed: int) -> bool:
    """Tell whether a complete batch begins at this offset or later."""
    # A payload may be full of marks. The head's checksum is tested first, so that each false mark
    # costs a few bytes of CRC and not the whole rest of the file.
    place = data.find(_MARK, at)
    while place >= 0:
        if _payload_length(data, place, seed) is not None:
            return True
        place = data.find(_MARK, place + 1)
    return False


def pack(messages: Iterable[Message]) -> bytes:
    """Return the payload of a batch with these messages."""
    return b"".join([sized(message.wire) for message in messages])


def unpack(at: int, payload: bytes, run: bytes) -> list[Message]:
    """Return the messages of the batch that begins at this offset of its file."""
    # The checksums have passed by now, so what is wrong here was written so.
    reader = Reader(payload)
    messages = []
    while reader.left():
        place = at + HEAD + reader.at
        try:
            messages.append(decode(reader.sized()))
        except Refused as error:
            raise BadSegment(place, f"this is not a message ({error})") from error
        if messages[-1].run != run:
            raise BadSegment(place, "this message belongs to another run")
    return messages
