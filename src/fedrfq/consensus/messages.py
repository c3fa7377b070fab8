"""The messages that servers and clients exchange, in one fixed layout.

Every message starts with a tag, its kind, the run's id and the round. The signature covers exactly
these bytes and those of the body that follows. A message keeps the bytes it arrived in: these are
stored, hashed and passed on, and never encoded again.

Nothing changes a body once it is made. The classes are not frozen all the same, because a frozen
dataclass takes three times as long to make.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import ClassVar, Self

from fedrfq.consensus.protocol import LATEST, TAG_BYTES, refusal, tag, version_of
from fedrfq.consensus.records import (
    BODY,
    CERT,
    COMMIT,
    DIGEST,
    EVIDENCE,
    FETCH,
    LIST,
    OUTCOME,
    PARTS,
    PREPARE,
    PREPREPARE,
    PROPOSAL,
    RECEIPT,
    SIGNATURE,
    UPLOAD,
    VIEWCHANGE,
    Certificate,
    Entries,
    Entry,
    Inputs,
    Kind,
    PartKind,
    Record,
    part_digest,
    read_entries,
    write_entries,
)
from fedrfq.consensus.sizes import LARGEST
from fedrfq.consensus.wire import Reader, Refused, Sizes, sized, u8, u16, u32

__all__ = [
    "BODY",
    "CERT",
    "COMMIT",
    "DIGEST",
    "EVIDENCE",
    "FETCH",
    "KINDS",
    "LIST",
    "OUTCOME",
    "PARTS",
    "PREPARE",
    "PREPREPARE",
    "PROPOSAL",
    "RECEIPT",
    "SIGNATURE",
    "SIGNED",
    "UPLOAD",
    "VIEWCHANGE",
    "AnyMessage",
    "Cert",
    "Certificate",
    "ChangeProposal",
    "Commit",
    "Entries",
    "Entry",
    "Evidence",
    "Fetch",
    "Inputs",
    "Kind",
    "Message",
    "Part",
    "PartKind",
    "PrePrepare",
    "Prepare",
    "Receipt",
    "Record",
    "Upload",
    "UploadList",
    "ViewChange",
    "author",
    "decode",
    "encode",
    "nested_in",
    "part_digest",
    "run_of",
    "unsigned",
    "write_entries",
]

_HEADER = struct.Struct("<8sB32sI")  # tag with version, kind, run, round
_UPLOAD = struct.Struct("<II")  # client, size
_PROPOSAL = struct.Struct("<HI")  # server, size
_RECEIPT = struct.Struct("<HI32s")  # server, client, digest
_VIEW_AND_SERVER = struct.Struct("<IH")
_VOTE = struct.Struct("<I32sH")  # view, value, server
_PART = struct.Struct("<BI")  # what it is, size

_FETCHABLE = tuple(PartKind)
_SENT_AS_PART = (*PARTS, PartKind.STANDING, PartKind.EVIDENCE)


# Bodies


@dataclass(slots=True, unsafe_hash=True)
class Upload:
    """A client's contribution to a round; its content belongs to the application."""

    kind: ClassVar[Kind] = Kind.UPLOAD
    round: int
    client: int
    content: bytes

    def write(self) -> bytes:
        """Return the body's bytes."""
        return _UPLOAD.pack(self.client, len(self.content)) + self.content

    @staticmethod
    def read(round_: int, r: Reader) -> Upload:
        """Read a body."""
        client, size = _UPLOAD.unpack(r.take(_UPLOAD.size))
        return Upload(round_, client, r.take(size))


@dataclass(slots=True, unsafe_hash=True)
class ChangeProposal:
    """A server's proposal to change the federation: the text of the one that is to follow."""

    kind: ClassVar[Kind] = Kind.PROPOSAL
    round: int
    server: int
    content: bytes

    def write(self) -> bytes:
        """Return the body's bytes."""
        return _PROPOSAL.pack(self.server, len(self.content)) + self.content

    @staticmethod
    def read(round_: int, r: Reader) -> ChangeProposal:
        """Read a body."""
        server, size = _PROPOSAL.unpack(r.take(_PROPOSAL.size))
        return ChangeProposal(round_, server, r.take(size))


@dataclass(slots=True, unsafe_hash=True)
class Receipt:
    """A server's promise to a client that its stored upload will be in the server's list."""

    kind: ClassVar[Kind] = Kind.RECEIPT
    round: int
    server: int
    client: int
    digest: bytes

    def write(self) -> bytes:
        """Return the body's bytes."""
        return _RECEIPT.pack(self.server, self.client, self.digest)

    @staticmethod
    def read(round_: int, r: Reader) -> Receipt:
        """Read a body."""
        return Receipt(round_, *_RECEIPT.unpack(r.take(_RECEIPT.size)))


@dataclass(slots=True, unsafe_hash=True)
class UploadList:
    """The uploads and change proposals a server holds when it closes the round, in ascending order.

    A client that sent two different uploads has two entries, and so has a server with two
    proposals.
    """

    kind: ClassVar[Kind] = Kind.LIST
    round: int
    server: int
    entries: Entries
    proposals: Entries = ()

    def write(self) -> bytes:
        """Return the body's bytes."""
        return u16(self.server) + write_entries(self.entries) + write_entries(self.proposals)

    @staticmethod
    def read(round_: int, r: Reader) -> UploadList:
        """Read a body."""
        return UploadList(round_, r.u16(), read_entries(r), read_entries(r))


@dataclass(slots=True, unsafe_hash=True)
class PrePrepare:
    """A leader's proposal, with what justifies it.

    A free choice carries the lists that its record follows from. After view 0 a proposal carries
    the view changes that opened the view, as the paper's NEW-VIEW does (section 4.4).
    """

    kind: ClassVar[Kind] = Kind.PREPREPARE
    round: int
    view: int
    server: int
    record: Record
    lists: tuple[Message, ...]
    changes: tuple[Message, ...]

    def write(self) -> bytes:
        """Return the body's bytes."""
        head = _VIEW_AND_SERVER.pack(self.view, self.server) + self.record.write()
        return head + _write_nested(self.lists) + _write_nested(self.changes)

    @staticmethod
    def read(round_: int, r: Reader) -> PrePrepare:
        """Read a body."""
        view = r.u32()
        server = r.u16()
        record = Record.read(r)
        lists = _read_nested(r, Kind.LIST)
        changes = _read_nested(r, Kind.VIEWCHANGE)
        return PrePrepare(round_, view, server, record, lists, changes)


@dataclass(slots=True, unsafe_hash=True)
class _Vote:
    """A server's vote for a value in a view."""

    round: int
    view: int
    value: bytes
    server: int

    def write(self) -> bytes:
        """Return the body's bytes."""
        return _VOTE.pack(self.view, self.value, self.server)

    @classmethod
    def read(cls, round_: int, r: Reader) -> Self:
        """Read a body."""
        return cls(round_, *_VOTE.unpack(r.take(_VOTE.size)))


@dataclass(slots=True, unsafe_hash=True)
class Prepare(_Vote):
    """A vote for the leader's proposal: its sender has come to the same record itself."""

    kind: ClassVar[Kind] = Kind.PREPARE


@dataclass(slots=True, unsafe_hash=True)
class Commit(_Vote):
    """A vote to decide: its sender holds a prepared certificate."""

    kind: ClassVar[Kind] = Kind.COMMIT


@dataclass(slots=True, unsafe_hash=True)
class ViewChange:
    """A server's move to a higher view (section 4.4 of the paper).

    `prepared` is what it has prepared in this round, if anything, and `last` the certificate of the
    previous round, which stands for the paper's stable checkpoint.
    """

    kind: ClassVar[Kind] = Kind.VIEWCHANGE
    round: int
    view: int
    server: int
    prepared: Certificate | None
    last: Certificate | None

    def write(self) -> bytes:
        """Return the body's bytes."""
        head = _VIEW_AND_SERVER.pack(self.view, self.server)
        return head + _write_optional(self.prepared) + _write_optional(self.last)

    @staticmethod
    def read(round_: int, r: Reader) -> ViewChange:
        """Read a body."""
        return ViewChange(round_, r.u32(), r.u16(), _read_optional(r), _read_optional(r))


@dataclass(slots=True, unsafe_hash=True)
class Cert:
    """A certificate as a message. It proves itself, so it needs no signature of its sender."""

    kind: ClassVar[Kind] = Kind.CERT
    round: int
    certificate: Certificate

    def write(self) -> bytes:
        """Return the body's bytes."""
        return self.certificate.write()

    @staticmethod
    def read(round_: int, r: Reader) -> Cert:
        """Read a body."""
        return Cert(round_, Certificate.read(r))


@dataclass(slots=True, unsafe_hash=True)
class Evidence:
    """Two signed messages of one party that an honest party cannot both have signed."""

    kind: ClassVar[Kind] = Kind.EVIDENCE
    round: int
    first: Message
    second: Message

    def write(self) -> bytes:
        """Return the body's bytes."""
        return sized(self.first.wire) + sized(self.second.wire)

    @staticmethod
    def read(round_: int, r: Reader) -> Evidence:
        """Read a body."""
        # Only signed kinds, which excludes evidence in evidence and so bounds the depth.
        return Evidence(round_, _read_message(r, SIGNED), _read_message(r, SIGNED))


@dataclass(slots=True, unsafe_hash=True)
class Fetch:
    """A request for something.

    CERT and WORDS are asked for by the round alone, and leave the digest zero. A request for
    STANDING carries in its place a nonce, a number never used before. One for EVIDENCE carries
    the number of a proof in place of the round, and the digest of all offences its sender knows of.
    """

    kind: ClassVar[Kind] = Kind.FETCH
    round: int
    what: PartKind
    digest: bytes = bytes(DIGEST)

    def write(self) -> bytes:
        """Return the body's bytes."""
        return u8(self.what) + self.digest

    @staticmethod
    def read(round_: int, r: Reader) -> Fetch:
        """Read a body."""
        return Fetch(round_, _read_part_kind(r, _FETCHABLE), r.take(DIGEST))


@dataclass(slots=True, unsafe_hash=True)
class Part:
    """A part of a record, in answer to a fetch; uploads and certificates are messages of their own.

    The content of a STANDING is the nonce of the request, then a certificate or nothing. That of
    EVIDENCE is a message, and its round the number of the proof that was asked for.
    """

    kind: ClassVar[Kind] = Kind.BODY
    round: int
    what: PartKind
    content: bytes

    def write(self) -> bytes:
        """Return the body's bytes."""
        return _PART.pack(self.what, len(self.content)) + self.content

    @staticmethod
    def read(round_: int, r: Reader) -> Part:
        """Read a body."""
        return Part(round_, _read_part_kind(r, _SENT_AS_PART), r.sized())


AnyMessage = (
    Upload
    | ChangeProposal
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
# Sets of exact types: they are looked up for every message that is made.
_SERVER_BODIES = (ChangeProposal, Receipt, UploadList, PrePrepare, Prepare, Commit, ViewChange)
_BY_SERVERS = frozenset(_SERVER_BODIES)
_IN_VIEWS = frozenset((PrePrepare, Prepare, Commit, ViewChange))
_VOTES = frozenset((Prepare, Commit))
_UNSIGNED = (Cert, Evidence, Fetch, Part)  # they prove themselves, or are only requests

SIGNED = frozenset(body.kind for body in (Upload, *_SERVER_BODIES))
KINDS: dict[int, type[AnyMessage]] = {
    body.kind: body for body in (Upload, *_SERVER_BODIES, *_UNSIGNED)
}


# The envelope


class Message:
    """A body with the bytes that encode it and, where its kind has one, its author's signature.

    The signature is given as bytes, or as a signer that is called when the signature is first
    needed: a message that is never sent is never signed.
    """

    __slots__ = (
        "_digest",
        "_raw",
        "_signature",
        "author",
        "body",
        "checked_by",
        "protocol",
        "run",
        "server",
        "value",
        "verified_by",
        "view",
    )

    def __init__(
        self,
        run: bytes,
        body: AnyMessage,
        raw: bytes | None = None,
        signature: bytes | Callable[[bytes], bytes] = b"",
        protocol: int = LATEST,
    ) -> None:
        self.run = run
        self.protocol = protocol
        self.body = body
        self._raw = raw
        self._signature = signature
        # Marks set by `Rules`, so that nothing is verified twice. They hold the rules themselves:
        # what one run's rules have accepted says nothing to another's.
        self.verified_by: object = None  # the signature
        self.checked_by: object = None  # the body
        self._digest: bytes | None = None
        # Copies of fields that not all bodies have, but that are read for every message.
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
        """The bytes of header and body, which are what is signed."""
        if self._raw is None:
            self._raw = encode(self.run, self.body, self.protocol)
        return self._raw

    @property
    def signature(self) -> bytes:
        """The author's signature of `raw`; empty for the kinds that have none."""
        if not isinstance(self._signature, bytes):
            self._signature = self._signature(self.raw)
        return self._signature

    @property
    def digest(self) -> bytes:
        """The hash of `raw`, without the signature: signing the same bytes twice is no conflict."""
        if self._digest is None:
            self._digest = hashlib.sha256(self.raw).digest()
        return self._digest

    @property
    def wire(self) -> bytes:
        """The bytes that are sent: `raw`, then the signature."""
        return self.raw + self.signature

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Message)
            and self.raw == other.raw
            and self.signature == other.signature
        )

    def __hash__(self) -> int:
        # Without the signature, which may not be made yet.
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Message({self.body!r})"


def encode(run: bytes, body: AnyMessage, protocol: int = LATEST) -> bytes:
    """Return the bytes of header and body, which are what is signed."""
    return _HEADER.pack(tag(protocol), body.kind, run, body.round) + body.write()


def unsigned(run: bytes, body: AnyMessage) -> Message:
    """Return a message of a kind that needs no signature."""
    return Message(run, body)


def decode(data: bytes, sizes: Sizes = LARGEST) -> Message:
    """Return the message in these bytes; refuse all bytes that are no message's `wire`.

    What is larger than an honest message is refused before anything in it is read. Messages are
    nested at most three deep, as only evidence holds proposals, only proposals hold lists and view
    changes, and these hold no messages.
    """
    return _decode(data, KINDS, sizes)


def run_of(data: bytes) -> bytes | None:
    """Return the run of the message in these bytes, without decoding it; none if it has none."""
    if len(data) < _HEADER.size or version_of(data[:TAG_BYTES]) is None:
        return None
    run: bytes = _HEADER.unpack_from(data)[2]
    return run


def _decode(data: bytes, allowed: Container[int], sizes: Sizes) -> Message:
    """Decode a message of one of the allowed kinds."""
    if len(data) < _HEADER.size:
        raise Refused(f"{len(data)} bytes are too few for a message: its header has {_HEADER.size}")
    found, kind, run, round_ = _HEADER.unpack_from(data)
    protocol = version_of(found)
    if protocol is None:
        raise Refused("not a message of fedrfq")
    why = refusal(protocol)
    if why is not None:
        raise Refused(f"a message of {why}")
    if kind not in allowed:
        raise Refused(f"a message of kind {kind} does not belong here")
    if len(data) > sizes.by_kind[kind]:
        raise Refused(
            f"{len(data)} bytes: an honest message of kind {kind} has at most {sizes.by_kind[kind]}"
        )
    end = len(data)
    if kind in SIGNED:
        end -= SIGNATURE
    if end < _HEADER.size:
        raise Refused("the signature is missing")
    # The signature is cut off before the body is read, so that no field can reach into it.
    raw = data[:end]
    reader = Reader(raw, sizes)
    reader.at = _HEADER.size
    body = KINDS[kind].read(round_, reader)
    reader.end()
    # A message is of one run, and so is all that it carries.
    for nested in nested_in(body):
        if nested.run != run or nested.protocol != protocol:
            raise Refused("a message of one run inside a message of another")
    # With the bytes as they came: what was signed is never encoded again.
    return Message(run, body, raw, data[end:], protocol)


def nested_in(body: AnyMessage) -> tuple[Message, ...]:
    """Return the messages that a body carries."""
    if type(body) is PrePrepare:
        return body.lists + body.changes
    if type(body) is Evidence:
        return (body.first, body.second)
    return ()


def author(body: AnyMessage) -> int | None:
    """Return the party that must have signed a body: a server's number, or ~k for client k.

    Kinds that need no signature have no author.
    """
    if type(body) is Upload:
        return ~body.client
    if type(body) in _BY_SERVERS:
        return body.server  # type: ignore[union-attr]
    return None


# Fields that several bodies have


def _read_message(r: Reader, allowed: Container[int]) -> Message:
    return _decode(r.sized(), allowed, r.sizes)


def _write_nested(messages: tuple[Message, ...]) -> bytes:
    return u32(len(messages)) + b"".join([sized(message.wire) for message in messages])


def _read_nested(r: Reader, kind: Kind) -> tuple[Message, ...]:
    # Each is preceded by its length, and has at least a header and a signature.
    min_size = 4 + _HEADER.size + SIGNATURE
    return r.many(min_size, lambda: _read_message(r, (kind,)), r.sizes.servers)


def _write_optional(certificate: Certificate | None) -> bytes:
    if certificate is None:
        return b"\0"
    return b"\1" + certificate.write()


def _read_optional(r: Reader) -> Certificate | None:
    flag = r.u8()
    if flag > 1:
        raise Refused(f"flag {flag}: expected 1 where a certificate follows, or 0")
    if flag:
        return Certificate.read(r)
    return None


def _read_part_kind(r: Reader, allowed: tuple[PartKind, ...]) -> PartKind:
    # Compared as a number: making a PartKind of an unknown one would raise another error.
    what = r.u8()
    if what not in allowed:
        raise Refused(f"nothing of kind {what} can be fetched")
    return PartKind(what)
