"""A small application for the fuzzer: numbers, of which the farthest is filtered, added up over the rounds.

Whatever could go wrong in a committee shows in its result: a missing or second upload, their order, the round before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload

_CONTENT = struct.Struct("<cq")
_GLOBALS = struct.Struct("<IqQ")
MOST = 10**6


def content(number: int) -> bytes:
    return _CONTENT.pack(b"t", number)


class Toy:
    """Numbers of clients and servers count alike. `last`: the round with which it is over; none: it goes on for ever."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last

    def over(self, outcome: Outcome) -> bool:
        return self.last is not None and _GLOBALS.unpack(outcome.globals_)[0] >= self.last

    def start(self) -> Outcome:
        return Outcome(b"", b"", bytes(32))

    def refuses(self, upload: Upload) -> str | None:
        if len(upload.content) != _CONTENT.size:
            return "of a wrong length"
        marker, number = _CONTENT.unpack(upload.content)
        if marker != b"t":
            return "not marked as a number"
        if abs(number) <= MOST:
            return None
        return "out of range"

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        numbers = [_CONTENT.unpack(upload.content)[1] for upload in uploads]
        if numbers:
            middle = sorted(numbers)[len(numbers) // 2]
        else:
            middle = 0
        far = [abs(number - middle) for number in numbers]
        if far:
            worst = far.index(max(far))
        else:
            worst = 0
        mixed = 0
        for upload, number in zip(uploads, numbers, strict=True):
            mixed = (mixed * 1_000_003 + number + upload.client) % 2**64
        globals_ = _GLOBALS.pack(round_, sum(numbers[:worst] + numbers[worst + 1 :]), mixed)
        if numbers:
            verdicts = bytes([uploads[worst].client % 256])
        else:
            verdicts = b""
        return Outcome(globals_, verdicts, sha256(before.state + globals_ + verdicts).digest())
