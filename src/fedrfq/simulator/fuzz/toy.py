"""A small application for the fuzzer: it drops the farthest of some numbers and adds up the others.

Whatever goes wrong in a committee shows in the result: a missing or second upload, a wrong order of
uploads, or another round before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload

_CONTENT = struct.Struct("<cq")
_GLOBALS = struct.Struct("<IqQ")
# Every so many rounds the public part changes, beginning with the first; in the others it stays.
_PUBLIC_EVERY = 3
MAX_NUMBER = 10**6
# Of an upload, and of the longest part of an outcome.
CONTENT_BYTES = _CONTENT.size
PART_BYTES = 64


def content(number: int) -> bytes:
    """Return the content of an upload of this number."""
    return _CONTENT.pack(b"t", number)


def successor(number: int) -> bytes:
    """Return the content of a change proposal of this number."""
    return _CONTENT.pack(b"s", number)


class Toy:
    """An application whose uploads and change proposals are numbers."""

    def start(self) -> Outcome:
        return Outcome(b"", b"", bytes(32))

    def refuses(self, upload: Upload) -> str | None:
        return _problem(upload.content, b"t")

    def refuses_successor(self, content: bytes) -> str | None:
        return _problem(content, b"s")

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        numbers = [_CONTENT.unpack(upload.content)[1] for upload in uploads]
        total = sum(numbers)
        verdicts = b""
        if numbers:
            farthest = _farthest(numbers)
            total -= numbers[farthest]
            verdicts = bytes([uploads[farthest].client % 256])
        # A polynomial hash, which depends on the order of the uploads; the sum does not.
        mixed = 0
        for upload, number in zip(uploads, numbers, strict=True):
            mixed = (mixed * 1_000_003 + number + upload.client) % 2**64
        globals_ = _GLOBALS.pack(round_, total, mixed)
        state = sha256(before.state + globals_ + verdicts).digest()
        public = before.public
        if round_ % _PUBLIC_EVERY == 1:
            public = b"public " + globals_
        return Outcome(globals_, verdicts, state, public)


def _problem(content: bytes, expected: bytes) -> str | None:
    """Return why these bytes are not a number with this marker; None if they are."""
    if len(content) != _CONTENT.size:
        return "of a wrong length"
    marker, number = _CONTENT.unpack(content)
    if marker != expected:
        return "not marked as what it is"
    if abs(number) > MAX_NUMBER:
        return "out of range"
    return None


def _farthest(numbers: list[int]) -> int:
    """Return the index of the first number that is farthest from the median."""
    median = sorted(numbers)[len(numbers) // 2]
    distances = [abs(number - median) for number in numbers]
    return distances.index(max(distances))
