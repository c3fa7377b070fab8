"""What servers and clients say to each other, in one fixed layout.

Every message starts with a tag, its kind, the run's id and the round; what is signed is exactly these bytes and those
that follow. A message keeps the bytes it came in: they are stored, hashed and handed on, and never encoded again.

Nothing changes a body once it is made. They are not frozen all the same: a frozen one takes three times as long to make.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from operator import lt
from typing import ClassVar, Self

from fedrfq.consensus.wire import Reader, Refused, sized, u8, u16, u32

DIGEST = 32
SIGNATURE = 64
_TAG = b"fedrfq-1"
_HEADER = struct.Struct("<8sB32sI")  # tag with version, kind, run, round
_ENTRY = struct.Struct("<I32s")
_UPLOAD = struct.Struct("<II")  # client, size
_PART = struct.Struct("<BI")  # what it is, and its size
_PROOF = struct.Struct("<BI164sI")  # phase, view, record, number of votes
_RECORD = struct.Struct("<I32s32s32s32s32s")
_SERVER = struct.Struct("<H")
_PLACE = struct.Struct("<IH")  # view and server
_VOTE = struct.Struct("<I32sH")
_RECEIPT = struct.Struct("<HI32s")

Entry = tuple[int, bytes]  # a client, and the digest of its upload


class Kind(IntEnum):
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


UPLOAD, RECEIPT, LIST, PREPREPARE, PREPARE, COMMIT, VIEWCHANGE, CERT, EVIDENCE, FETCH, BODY = (
    Kind  # quicker than Kind.LIST
)


class PartKind(IntEnum):
    """What can be fetched: an upload by its digest, a round's certificate, a part of a record by its digest, what a
    server itself has said last in the round, or where it stands: its last certificate, for one that has lost its log."""

    UPLOAD = 1
    CERT = 2
    SET = 3
    GLOBALS = 4
    VERDICTS = 5
    STATE = 6
    WORDS = 7
    STANDING = 8


@dataclass(slots=True, unsafe_hash=True)
class Upload:
    """A client's share of a round; the content is the application's. Of K clients' federation, client K + s is server s."""

    kind: ClassVar[Kind] = Kind.UPLOAD
    round: int
    client: int
    content: bytes

    def write(self) -> bytes:
        return _UPLOAD.pack(self.client, len(self.content)) + self.content

    @staticmethod
    def read(round_: int, r: Reader) -> Upload:
        client, size = _UPLOAD.unpack(r.take(_UPLOAD.size))
        return Upload(round_, client, r.take(size))


@dataclass(slots=True, unsafe_hash=True)
class Receipt:
    """A server's promise that an upload it stored will stand in its list."""

    kind: ClassVar[Kind] = Kind.RECEIPT
    round: int
    server: int
    client: int
    digest: bytes

    def write(self) -> bytes:
        return _RECEIPT.pack(self.server, self.client, self.digest)

    @staticmethod
    def read(round_: int, r: Reader) -> Receipt:
        return Receipt(round_, *_RECEIPT.unpack(r.take(_RECEIPT.size)))


@dataclass(slots=True, unsafe_hash=True)
class UploadList:
    """What a server holds when it closes the round, in ascending order; two entries of a client that sent two uploads."""

    kind: ClassVar[Kind] = Kind.LIST
    round: int
    server: int
    entries: tuple[Entry, ...]

    def write(self) -> bytes:
        return u16(self.server) + write_entries(self.entries)

    @staticmethod
    def read(round_: int, r: Reader) -> UploadList:
        return UploadList(round_, r.u16(), read_entries(r))


@dataclass(slots=True, unsafe_hash=True)
class Record:
    """What is decided in a round: the digests of all that went in and came out. Its hash is the round's value."""

    round: int
    previous: bytes  # the value of the round before
    set_: bytes
    globals_: bytes
    verdicts: bytes
    state: bytes
    _named: tuple[bytes, bytes] = field(
        default=(b"", b""), init=False, repr=False, compare=False
    )  # a run, and the value

    def write(self) -> bytes:
        return _RECORD.pack(
            self.round, self.previous, self.set_, self.globals_, self.verdicts, self.state
        )

    @staticmethod
    def read(r: Reader) -> Record:
        return Record(*_RECORD.unpack(r.take(_RECORD.size)))

    def parts(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Their digests, in the order of `PARTS`."""
        return self.set_, self.globals_, self.verdicts, self.state

    def value(self, run: bytes) -> bytes:
        """Asked for again and again, and computed once."""
        if self._named[0] != run:
            self._named = run, hashlib.sha256(_TAG + b"value" + run + self.write()).digest()
        return self._named[1]


@dataclass(slots=True, unsafe_hash=True)
class Certificate:
    """A quorum of votes (PREPARE or COMMIT) of one view for one record: their signatures, by ascending server."""

    phase: Kind
    view: int
    record: Record
    signatures: tuple[tuple[int, bytes], ...]

    def write(self) -> bytes:
        votes = b"".join(
            [_SERVER.pack(server) + signature for server, signature in self.signatures]
        )
        return _PROOF.pack(self.phase, self.view, self.record.write(), len(self.signatures)) + votes

    @staticmethod
    def read(r: Reader) -> Certificate:
        phase = r.u8()
        view = r.u32()
        record = Record.read(r)
        if phase not in (Kind.PREPARE, Kind.COMMIT):
            raise Refused(f"a certificate of kind {phase}")
        votes = r.many(2 + SIGNATURE, lambda: (r.u16(), r.take(SIGNATURE)))
        if any(a >= b for (a, _), (b, _) in pairwise(votes)):
            raise Refused("a certificate's servers are not in ascending order")
        return Certificate(Kind(phase), view, record, votes)


@dataclass(slots=True, unsafe_hash=True)
class PrePrepare:
    """A leader's proposal: in a free choice with the lists it follows from, after view 0 with the view changes."""

    kind: ClassVar[Kind] = Kind.PREPREPARE
    round: int
    view: int
    server: int
    record: Record
    lists: tuple[Message, ...]
    changes: tuple[Message, ...]

    def write(self) -> bytes:
        head = _PLACE.pack(self.view, self.server) + self.record.write()
        return head + _write_nested(self.lists) + _write_nested(self.changes)

    @staticmethod
    def read(round_: int, r: Reader) -> PrePrepare:
        view = r.u32()
        server = r.u16()
        record = Record.read(r)
        return PrePrepare(
            round_,
            view,
            server,
            record,
            _read_nested(r, Kind.LIST),
            _read_nested(r, Kind.VIEWCHANGE),
        )


@dataclass(slots=True, unsafe_hash=True)
class _Vote:
    """For a value, in a view."""

    round: int
    view: int
    value: bytes
    server: int

    def write(self) -> bytes:
        return _VOTE.pack(self.view, self.value, self.server)

    @classmethod
    def read(cls, round_: int, r: Reader) -> Self:
        return cls(round_, *_VOTE.unpack(r.take(_VOTE.size)))


@dataclass(slots=True, unsafe_hash=True)
class Prepare(_Vote):
    kind: ClassVar[Kind] = Kind.PREPARE


@dataclass(slots=True, unsafe_hash=True)
class Commit(_Vote):
    kind: ClassVar[Kind] = Kind.COMMIT


@dataclass(slots=True, unsafe_hash=True)
class ViewChange:
    """A server leaves for a higher view: with what it has prepared in this round, and the certificate of the last."""

    kind: ClassVar[Kind] = Kind.VIEWCHANGE
    round: int
    view: int
    server: int
    prepared: Certificate | None
    last: Certificate | None

    def write(self) -> bytes:
        return (
            _PLACE.pack(self.view, self.server)
            + _write_maybe(self.prepared)
            + _write_maybe(self.last)
        )

    @staticmethod
    def read(round_: int, r: Reader) -> ViewChange:
        return ViewChange(round_, r.u32(), r.u16(), _read_maybe(r), _read_maybe(r))


@dataclass(slots=True, unsafe_hash=True)
class Cert:
    """A certificate as a message: it proves itself."""

    kind: ClassVar[Kind] = Kind.CERT
    round: int
    certificate: Certificate

    def write(self) -> bytes:
        return self.certificate.write()

    @staticmethod
    def read(round_: int, r: Reader) -> Cert:
        return Cert(round_, Certificate.read(r))


@dataclass(slots=True, unsafe_hash=True)
class Evidence:
    """Two signed messages of one party that an honest one cannot both have signed."""

    kind: ClassVar[Kind] = Kind.EVIDENCE
    round: int
    first: Message
    second: Message

    def write(self) -> bytes:
        return sized(self.first.wire) + sized(self.second.wire)

    @staticmethod
    def read(round_: int, r: Reader) -> Evidence:
        return Evidence(round_, _nested(r, SIGNED), _nested(r, SIGNED))


@dataclass(slots=True, unsafe_hash=True)
class Fetch:
    """A request; where no digest is known before, of a certificate and of words, it is left zero. Who asks for standings
    puts a number there that was never used before."""

    kind: ClassVar[Kind] = Kind.FETCH
    round: int
    what: PartKind
    digest: bytes = bytes(DIGEST)

    def write(self) -> bytes:
        return u8(self.what) + self.digest

    @staticmethod
    def read(round_: int, r: Reader) -> Fetch:
        return Fetch(round_, _read_what(r, tuple(PartKind)), r.take(DIGEST))


@dataclass(slots=True, unsafe_hash=True)
class Part:
    """A part of a record, for whoever fetches it; uploads and certificates are messages of their own. A standing is the
    number of the request, and a certificate or nothing."""

    kind: ClassVar[Kind] = Kind.BODY
    round: int
    what: PartKind
    content: bytes

    def write(self) -> bytes:
        return _PART.pack(self.what, len(self.content)) + self.content

    @staticmethod
    def read(round_: int, r: Reader) -> Part:
        return Part(round_, _read_what(r, _BODIES), r.sized())


_PART_TAGS = {what: _TAG + b"part" + u8(what) for what in PartKind}
AnyMessage = (
    Upload
    | Receipt
    | UploadList
    | PrePrepare
    | Prepare
    | Commit
    | ViewChange
    | Cert
    | Evidence
    | Fetch
    | Part
)
KINDS: dict[int, type[AnyMessage]] = {
    cls.kind: cls
    for cls in (
        Upload,
        Receipt,
        UploadList,
        PrePrepare,
        Prepare,
        Commit,
        ViewChange,
        Cert,
        Evidence,
        Fetch,
        Part,
    )
}
SIGNED = frozenset(
    (
        Kind.UPLOAD,
        Kind.RECEIPT,
        Kind.LIST,
        Kind.PREPREPARE,
        Kind.PREPARE,
        Kind.COMMIT,
        Kind.VIEWCHANGE,
    )
)
_BY_SERVERS = frozenset((Receipt, UploadList, PrePrepare, Prepare, Commit, ViewChange))
_IN_VIEWS = frozenset((PrePrepare, Prepare, Commit, ViewChange))
_VOTES = frozenset((Prepare, Commit))
PARTS = (PartKind.SET, PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE)
_BODIES = (*PARTS, PartKind.STANDING)


class Message:
    """A body with the bytes that say it, and its author's signature of them where the kind has one: as bytes, or, for what
    may never be sent, as the one who signs it when it is first asked for."""

    __slots__ = (
        "_digest",
        "_raw",
        "_signature",
        "author",
        "body",
        "run",
        "server",
        "sound",
        "value",
        "view",
        "vouched",
    )

    def __init__(
        self,
        run: bytes,
        body: AnyMessage,
        raw: bytes | None = None,
        signature: bytes | Callable[[bytes], bytes] = b"",
    ) -> None:
        self.run = run
        self.body = body
        self._raw = raw
        self._signature = signature
        self.vouched: object = None  # the rules by which the signature was found right
        self.sound: object = None  # and those by which the rest was
        self._digest: bytes | None = None
        self.author: int | None = None
        self.server = -1
        self.view = 0
        self.value = b""
        kind = type(body)
        if kind in _BY_SERVERS:
            self.author = self.server = body.server  # type: ignore[union-attr]
            if kind in _IN_VIEWS:
                self.view = body.view  # type: ignore[union-attr]
            if kind in _VOTES:
                self.value = body.value  # type: ignore[union-attr]
        elif kind is Upload:
            self.author = ~body.client  # type: ignore[union-attr]

    @property
    def raw(self) -> bytes:
        """The bytes that say it, and that are signed."""
        if self._raw is None:
            self._raw = encode(self.run, self.body)
        return self._raw

    @property
    def signature(self) -> bytes:
        if not isinstance(self._signature, bytes):
            self._signature = self._signature(self.raw)
        return self._signature

    @property
    def digest(self) -> bytes:
        """Of what is said, not of the signature: who signs the same twice has said one thing."""
        if self._digest is None:
            self._digest = hashlib.sha256(self.raw).digest()
        return self._digest

    @property
    def wire(self) -> bytes:
        return self.raw + self.signature

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Message)
            and self.raw == other.raw
            and self.signature == other.signature
        )

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Message({self.body!r})"


def encode(run: bytes, body: AnyMessage) -> bytes:
    """The bytes that are signed."""
    return _HEADER.pack(_TAG, body.kind, run, body.round) + body.write()


def unsigned(run: bytes, body: AnyMessage) -> Message:
    """A message of a kind that needs no signature."""
    return Message(run, body)


def decode(data: bytes) -> Message:
    """The message in these bytes; any bytes but those of `Message.wire` are refused."""
    return _decode(data, KINDS)


def _decode(data: bytes, allowed: Container[int]) -> Message:
    if len(data) < _HEADER.size:
        raise Refused(f"{len(data)} bytes are shorter than a header of {_HEADER.size}")
    tag, kind, run, round_ = _HEADER.unpack_from(data)
    if tag != _TAG:
        raise Refused("not a message of this version")
    if kind not in allowed:
        raise Refused(f"a message of kind {kind} does not belong here")
    end = len(data) - (SIGNATURE if kind in SIGNED else 0)
    if end < _HEADER.size:
        raise Refused("the signature is missing")
    raw = data[:end]
    reader = Reader(raw)
    reader.at = _HEADER.size
    body = KINDS[kind].read(round_, reader)
    reader.end()
    for nested in nested_in(body):
        if nested.run != run:
            raise Refused("a message of one run inside one of another")
    return Message(run, body, raw, data[end:])


def nested_in(body: AnyMessage) -> tuple[Message, ...]:
    """The messages a body carries."""
    if type(body) is PrePrepare:
        return body.lists + body.changes
    if type(body) is Evidence:
        return (body.first, body.second)
    return ()


def author(body: AnyMessage) -> int | None:
    """Who must have signed it: a server's number, or ~k for client k; none where no signature is needed."""
    if type(body) is Upload:
        return ~body.client
    if type(body) in _BY_SERVERS:
        return body.server  # type: ignore[union-attr]
    return None


def part_digest(what: PartKind, content: bytes) -> bytes:
    """Of a part of a record, as the record names it."""
    return hashlib.sha256(_PART_TAGS[what] + content).digest()


def write_entries(entries: tuple[Entry, ...]) -> bytes:
    return u32(len(entries)) + b"".join([_ENTRY.pack(*entry) for entry in entries])


def read_entries(r: Reader) -> tuple[Entry, ...]:
    entries = tuple(_ENTRY.iter_unpack(r.take(r.number(_ENTRY.size) * _ENTRY.size)))
    if not all(map(lt, entries, entries[1:])):
        raise Refused("entries are not in ascending order")
    return entries


def decode_entries(content: bytes) -> tuple[Entry, ...]:
    """A set of uploads, from its bytes."""
    reader = Reader(content)
    entries = read_entries(reader)
    reader.end()
    return entries


def _nested(r: Reader, allowed: Container[int]) -> Message:
    return _decode(r.sized(), allowed)


def _write_nested(messages: tuple[Message, ...]) -> bytes:
    return u32(len(messages)) + b"".join([sized(message.wire) for message in messages])


def _read_nested(r: Reader, kind: Kind) -> tuple[Message, ...]:
    return r.many(4 + _HEADER.size + SIGNATURE, lambda: _nested(r, (kind,)))


def _write_maybe(certificate: Certificate | None) -> bytes:
    if certificate is None:
        return b"\0"
    return b"\1" + certificate.write()


def _read_maybe(r: Reader) -> Certificate | None:
    flag = r.u8()
    if flag > 1:
        raise Refused(f"{flag} where 0 or 1 says whether a certificate follows")
    if flag:
        return Certificate.read(r)
    return None


def _read_what(r: Reader, allowed: tuple[PartKind, ...]) -> PartKind:
    what = r.u8()
    if what not in allowed:
        raise Refused(f"nothing of kind {what} can be fetched")
    return PartKind(what)
