"""What a round decides, and what proves it: records, the parts they name, and certificates.

These are the building blocks of messages: they are hashed, signed and sent, always in the one
layout that `write` produces.

Nothing changes a record or a certificate once it is made. The classes are not frozen all the same,
because a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from operator import lt

from fedrfq.consensus.wire import Reader, Refused, u8, u32

DIGEST = 32  # bytes of a SHA-256 digest
SIGNATURE = 64  # bytes of an Ed25519 signature
TAG = b"fedrfq-2"  # with the version; it starts everything that is hashed or signed
_ENTRY = struct.Struct("<I32s")  # client, digest
_RECORD = struct.Struct("<I32s32s32s32s32s32s")
_CERTIFICATE = struct.Struct("<BI196sI")  # phase, view, record, number of votes
_SERVER = struct.Struct("<H")

Entry = tuple[int, bytes]  # a client, and the digest of its upload


class Kind(IntEnum):
    """The kinds of messages, as numbered on the wire."""

    UPLOAD = 1
    RECEIPT = 2
    LIST = 3
    PREPREPARE = 4
    PREPARE = 5
    COMMIT = 6
    VIEWCHANGE = 7
    CERT = 8
    EVIDENCE = 9
    FETCH = 10
    BODY = 11


# Module constants for the hot paths: looking up Kind.LIST takes longer than looking up LIST.
UPLOAD, RECEIPT, LIST, PREPREPARE, PREPARE, COMMIT, VIEWCHANGE, CERT, EVIDENCE, FETCH, BODY = Kind


class PartKind(IntEnum):
    """What a server can be asked for.

    UPLOAD is an upload, by its digest. CERT is a round's certificate. SET, GLOBALS, VERDICTS,
    STATE and PUBLIC are the parts of a record, by their digests. WORDS are the messages that a
    server itself signed last in the round. STANDING is the server's last certificate, for a server
    that has lost its log (see `rejoin`). EVIDENCE is a proof of misbehaviour, for a server that may
    have missed it (see `evidence`).
    """

    UPLOAD = 1
    CERT = 2
    SET = 3
    GLOBALS = 4
    VERDICTS = 5
    STATE = 6
    WORDS = 7
    STANDING = 8
    PUBLIC = 9
    EVIDENCE = 10


# The parts of a record, in its order. All but the set of uploads are the outcome.
PARTS = (
    PartKind.SET,
    PartKind.GLOBALS,
    PartKind.VERDICTS,
    PartKind.STATE,
    PartKind.PUBLIC,
)
OUTCOME = PARTS[1:]
_PART_TAGS = {what: TAG + b"part" + u8(what) for what in PartKind}


@dataclass(slots=True, unsafe_hash=True)
class Record:
    """What a round decides: the digests of its inputs and outputs. Its hash is the value."""

    round: int
    previous: bytes  # the value of the previous round
    set_: bytes
    globals_: bytes
    verdicts: bytes
    state: bytes
    public: bytes
    # Cache of `value`: a run's id, and the value in that run.
    _cached: tuple[bytes, bytes] = field(default=(b"", b""), init=False, repr=False, compare=False)

    def write(self) -> bytes:
        """Return the record's bytes."""
        return _RECORD.pack(
            self.round,
            self.previous,
            self.set_,
            self.globals_,
            self.verdicts,
            self.state,
            self.public,
        )

    @staticmethod
    def read(r: Reader) -> Record:
        """Read a record."""
        return Record(*_RECORD.unpack(r.take(_RECORD.size)))

    def parts(self) -> tuple[bytes, ...]:
        """Return the digests of the parts, in the order of `PARTS`."""
        return self.set_, self.globals_, self.verdicts, self.state, self.public

    def outcome(self) -> tuple[bytes, ...]:
        """Return the digests of the outcome's parts, in the order of `OUTCOME`."""
        return self.globals_, self.verdicts, self.state, self.public

    def value(self, run: bytes) -> bytes:
        """Return the value that servers vote on: a hash of the run's id and the record."""
        # It is asked for with every vote, so it is computed once.
        if self._cached[0] != run:
            value = hashlib.sha256(TAG + b"value" + run + self.write()).digest()
            self._cached = run, value
        return self._cached[1]


@dataclass(slots=True, unsafe_hash=True)
class Certificate:
    """A quorum's votes for one record in one view: their signatures, by ascending server.

    With PREPARE as its phase it is a prepared certificate (section 4.2 of the PBFT paper), with
    COMMIT it proves that the round is decided.
    """

    phase: Kind
    view: int
    record: Record
    signatures: tuple[tuple[int, bytes], ...]

    def write(self) -> bytes:
        """Return the certificate's bytes."""
        votes = [_SERVER.pack(server) + signature for server, signature in self.signatures]
        head = _CERTIFICATE.pack(self.phase, self.view, self.record.write(), len(votes))
        return head + b"".join(votes)

    @staticmethod
    def read(r: Reader) -> Certificate:
        """Read a certificate; whether its signatures hold is for `Rules.certifies` to say."""
        phase = r.u8()
        view = r.u32()
        record = Record.read(r)
        if phase not in (Kind.PREPARE, Kind.COMMIT):
            raise Refused(f"a certificate of kind {phase}: expected PREPARE or COMMIT")
        votes = r.many(
            _SERVER.size + SIGNATURE, lambda: (r.u16(), r.take(SIGNATURE)), r.sizes.servers
        )
        # Strictly ascending, so that a certificate has one encoding and names no server twice.
        if any(a >= b for (a, _), (b, _) in pairwise(votes)):
            raise Refused("a certificate's servers are not in ascending order")
        return Certificate(Kind(phase), view, record, votes)


def part_digest(what: PartKind, content: bytes) -> bytes:
    """Return the digest by which a record names one of its parts."""
    return hashlib.sha256(_PART_TAGS[what] + content).digest()


def write_entries(entries: tuple[Entry, ...]) -> bytes:
    """Return the bytes of a list or set of uploads."""
    return u32(len(entries)) + b"".join([_ENTRY.pack(*entry) for entry in entries])


def read_entries(r: Reader) -> tuple[Entry, ...]:
    """Read a list or set of uploads, which must be in ascending order."""
    count = r.count(_ENTRY.size, r.sizes.entries)
    entries = tuple(_ENTRY.iter_unpack(r.take(count * _ENTRY.size)))
    if not all(map(lt, entries, entries[1:])):
        raise Refused("entries are not in ascending order")
    return entries


def decode_entries(content: bytes) -> tuple[Entry, ...]:
    """Return the set of uploads that these bytes hold, and nothing else."""
    reader = Reader(content)
    entries = read_entries(reader)
    reader.end()
    return entries
