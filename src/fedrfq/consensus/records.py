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
from typing import NamedTuple

from fedrfq.consensus import protocol
from fedrfq.consensus.wire import Reader, Refused, u8, u32

DIGEST = 32  # bytes of a SHA-256 digest
SIGNATURE = 64  # bytes of an Ed25519 signature
TAG = protocol.tag(3)  # it starts everything that is hashed; the version that defines these hashes
_ENTRY = struct.Struct("<I32s")  # client or server, digest
_RECORD = struct.Struct("<I32s32s32s32s32s32s32s")
_CERTIFICATE = struct.Struct("<BI228sI")  # phase, view, record, number of votes
_SERVER = struct.Struct("<H")

# A client and the digest of its upload, or a server and the digest of its proposal.
Entry = tuple[int, bytes]
Entries = tuple[Entry, ...]


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
    PROPOSAL = 12


# Module constants for the hot paths: looking up Kind.LIST takes longer than looking up LIST.
UPLOAD, RECEIPT, LIST, PREPREPARE, PREPARE, COMMIT, VIEWCHANGE = tuple(Kind)[:7]
CERT, EVIDENCE, FETCH, BODY, PROPOSAL = tuple(Kind)[7:]


class PartKind(IntEnum):
    """What a server can be asked for.

    UPLOAD is an upload and PROPOSAL a change proposal, by its digest. CERT is a round's
    certificate. SET, GLOBALS, VERDICTS, STATE, PUBLIC and SUCCESSOR are the parts of a record, by
    their digests. WORDS are the messages that a server itself signed last in the round. STANDING is
    the server's last certificate, for a server that has lost its log (see `rejoin`). EVIDENCE is a
    proof of misbehaviour, for a server that may have missed it (see `evidence`).
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
    PROPOSAL = 11
    SUCCESSOR = 12


# The parts of a record, in its order. All but the set of uploads are the outcome.
PARTS = (
    PartKind.SET,
    PartKind.GLOBALS,
    PartKind.VERDICTS,
    PartKind.STATE,
    PartKind.PUBLIC,
    PartKind.SUCCESSOR,
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
    successor: bytes  # of the text of the federation that follows; of no text if none does
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
            self.successor,
        )

    @staticmethod
    def read(r: Reader) -> Record:
        """Read a record."""
        return Record(*_RECORD.unpack(r.take(_RECORD.size)))

    def parts(self) -> tuple[bytes, ...]:
        """Return the digests of the parts, in the order of `PARTS`."""
        return self.set_, *self.outcome()

    def outcome(self) -> tuple[bytes, ...]:
        """Return the digests of the outcome's parts, in the order of `OUTCOME`."""
        return self.globals_, self.verdicts, self.state, self.public, self.successor

    def ends_run(self) -> bool:
        """Return whether the run is over after this round, because it names a successor."""
        return self.successor != NO_SUCCESSOR

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


# Two parts are empty in most rounds. Everybody knows them then: they are not stored, sent or asked
# for.
EMPTY_PARTS = {part_digest(what, b""): what for what in (PartKind.PUBLIC, PartKind.SUCCESSOR)}
NO_SUCCESSOR = part_digest(PartKind.SUCCESSOR, b"")


class Inputs(NamedTuple):
    """What a round is decided on: the clients' uploads and the servers' proposals."""

    uploads: Entries = ()
    proposals: Entries = ()

    def write(self) -> bytes:
        """Return the bytes of a record's set."""
        return write_entries(self.uploads) + write_entries(self.proposals)

    @staticmethod
    def decode(content: bytes) -> Inputs:
        """Return the set that these bytes hold, and nothing else."""
        reader = Reader(content)
        inputs = Inputs(read_entries(reader), read_entries(reader))
        reader.end()
        return inputs


def write_entries(entries: Entries) -> bytes:
    """Return the bytes of the entries of a list or set."""
    return u32(len(entries)) + b"".join([_ENTRY.pack(*entry) for entry in entries])


def read_entries(r: Reader) -> Entries:
    """Read the entries of a list or set, which must be in ascending order."""
    count = r.count(_ENTRY.size, r.sizes.entries)
    entries = tuple(_ENTRY.iter_unpack(r.take(count * _ENTRY.size)))
    if not all(map(lt, entries, entries[1:])):
        raise Refused("entries are not in ascending order")
    return entries
