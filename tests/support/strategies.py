"""Arbitrary messages of every kind, nested ones included, with hashes for signatures."""

from __future__ import annotations

import hashlib

from hypothesis import strategies as st

from fedrfq.consensus.messages import (
    DIGEST,
    KINDS,
    PARTS,
    SIGNATURE,
    SIGNED,
    AnyMessage,
    Cert,
    Certificate,
    ChangeProposal,
    Commit,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Receipt,
    Record,
    Upload,
    UploadList,
    ViewChange,
    encode,
)

RUN = bytes([0xAA]) * 32


class Seals:
    """Signatures without security: all keys are public, and whoever knows one can sign."""

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        return signature == seal(key, data)

    def weak(self, key: bytes) -> bool:
        return key.startswith(b"weak")


def seal(key: bytes, data: bytes) -> bytes:
    return hashlib.sha512(key + data).digest()


def message(body: AnyMessage, signature: bytes = bytes(SIGNATURE)) -> Message:
    """Return the message as a decoder would, without checking the signature."""
    return Message(RUN, body, encode(RUN, body), signature if body.kind in SIGNED else b"")


u16s = st.integers(0, 2**16 - 1)
u32s = st.integers(0, 2**32 - 1)
digests = st.binary(min_size=DIGEST, max_size=DIGEST)
signatures = st.binary(min_size=SIGNATURE, max_size=SIGNATURE)
contents = st.binary(max_size=40)
entries = st.sets(st.tuples(u32s, digests), max_size=3).map(lambda found: tuple(sorted(found)))
records = st.builds(Record, u32s, *[digests] * 7)
certificates = st.builds(
    Certificate,
    st.sampled_from((Kind.PREPARE, Kind.COMMIT)),
    u32s,
    records,
    st.dictionaries(u16s, signatures, max_size=3).map(lambda found: tuple(sorted(found.items()))),
)


def messages(kind: Kind) -> st.SearchStrategy[Message]:
    return st.builds(message, BODIES[kind], signatures)


def nested(kind: Kind) -> st.SearchStrategy[tuple[Message, ...]]:
    return st.lists(messages(kind), max_size=2).map(tuple)


any_signed = st.deferred(lambda: st.one_of([messages(kind) for kind in SIGNED]))
any_message = st.deferred(lambda: st.one_of([messages(kind) for kind in Kind]))
BODIES: dict[Kind, st.SearchStrategy[AnyMessage]] = {
    Kind.UPLOAD: st.builds(Upload, u32s, u32s, contents),
    Kind.RECEIPT: st.builds(Receipt, u32s, u16s, u32s, digests),
    Kind.LIST: st.builds(UploadList, u32s, u16s, entries, entries),
    Kind.PREPREPARE: st.deferred(
        lambda: st.builds(
            PrePrepare, u32s, u32s, u16s, records, nested(Kind.LIST), nested(Kind.VIEWCHANGE)
        )
    ),
    Kind.PREPARE: st.builds(Prepare, u32s, u32s, digests, u16s),
    Kind.COMMIT: st.builds(Commit, u32s, u32s, digests, u16s),
    Kind.VIEWCHANGE: st.builds(
        ViewChange, u32s, u32s, u16s, st.none() | certificates, st.none() | certificates
    ),
    Kind.CERT: st.builds(Cert, u32s, certificates),
    Kind.EVIDENCE: st.builds(Evidence, u32s, any_signed, any_signed),
    Kind.FETCH: st.builds(Fetch, u32s, st.sampled_from(PartKind), digests),
    Kind.BODY: st.builds(Part, u32s, st.sampled_from(PARTS), contents),
    Kind.PROPOSAL: st.builds(ChangeProposal, u32s, u16s, contents),
}
assert set(BODIES) == set(KINDS), "a kind of message without a strategy"
