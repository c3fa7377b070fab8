"""The layout of the committee's messages.

Each has one encoding, all other bytes are refused, and an announced length allocates nothing.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedrfq.consensus.messages import (
    KINDS,
    PARTS,
    SIGNED,
    AnyMessage,
    Cert,
    Certificate,
    ChangeProposal,
    Commit,
    Entries,
    Evidence,
    Fetch,
    Inputs,
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
    author,
    decode,
    encode,
    nested_in,
    part_digest,
    unsigned,
)
from fedrfq.consensus.roster import MAX_SERVERS
from fedrfq.consensus.wire import Reader, Refused, sized
from support.strategies import BODIES, RUN, any_message, entries, message, messages

# The layout, by hand: numbers are little-endian, lengths and counts are u32, and signed messages
# end with 64 bytes.


def fill(byte: str, size: int = 32) -> bytes:
    return bytes.fromhex(byte * size)


def header(kind: str) -> str:
    return "6665647266712d33" + kind + "aa" * 32 + "07000000"  # "fedrfq-3", kind, run, round 7


PARTS_HEX = ("b0", "b1", "b2", "b3", "b4", "b5", "b6")
RECORD = Record(7, *map(fill, PARTS_HEX))
RECORD_HEX = "07000000" + "".join(byte * 32 for byte in PARTS_HEX)
PREPARED = Certificate(Kind.PREPARE, 2, RECORD, ((1, fill("c1", 64)), (3, fill("c3", 64))))
PREPARED_HEX = (
    "05" + "02000000" + RECORD_HEX + "02000000" + ("0100" + "c1" * 64) + ("0300" + "c3" * 64)
)
COMMITTED = Certificate(Kind.COMMIT, 0, RECORD, ())
COMMITTED_HEX = "06" + "00000000" + RECORD_HEX + "00000000"
SIGNED_HEX = "5a" * 64
LIST = UploadList(7, 2, ((3, fill("d3")), (258, fill("d4"))), ((1, fill("d1")),))
LIST_HEX = (
    header("03")
    + "0200"
    + "02000000"
    + ("03000000" + "d3" * 32)
    + ("02010000" + "d4" * 32)
    + "01000000"
    + ("01000000" + "d1" * 32)
    + SIGNED_HEX
)
CHANGE = ViewChange(7, 4, 2, PREPARED, None)
CHANGE_HEX = header("07") + "04000000" + "0200" + ("01" + PREPARED_HEX) + "00" + SIGNED_HEX
VOTE_HEX = "04000000" + "ee" * 32 + "0300"


def signed_message(body: AnyMessage) -> Message:
    return message(body, fill("5a", 64))


def sized_hex(text: str) -> str:
    return struct.pack("<I", len(text) // 2).hex() + text


GOLDEN: dict[Kind, tuple[AnyMessage, str]] = {
    Kind.UPLOAD: (
        Upload(7, 258, b"abc"),
        header("01") + "02010000" + "03000000" + "616263" + SIGNED_HEX,
    ),
    Kind.RECEIPT: (
        Receipt(7, 2, 258, fill("dd")),
        header("02") + "0200" + "02010000" + "dd" * 32 + SIGNED_HEX,
    ),
    Kind.LIST: (LIST, LIST_HEX),
    Kind.PREPREPARE: (
        PrePrepare(7, 4, 3, RECORD, (signed_message(LIST),), (signed_message(CHANGE),)),
        header("04")
        + ("04000000" + "0300" + RECORD_HEX)
        + ("01000000" + sized_hex(LIST_HEX))
        + ("01000000" + sized_hex(CHANGE_HEX))
        + SIGNED_HEX,
    ),
    Kind.PREPARE: (Prepare(7, 4, fill("ee"), 3), header("05") + VOTE_HEX + SIGNED_HEX),
    Kind.COMMIT: (Commit(7, 4, fill("ee"), 3), header("06") + VOTE_HEX + SIGNED_HEX),
    Kind.VIEWCHANGE: (CHANGE, CHANGE_HEX),
    Kind.CERT: (Cert(7, COMMITTED), header("08") + COMMITTED_HEX),
    Kind.EVIDENCE: (
        Evidence(7, signed_message(LIST), signed_message(CHANGE)),
        header("09") + sized_hex(LIST_HEX) + sized_hex(CHANGE_HEX),
    ),
    Kind.FETCH: (Fetch(7, PartKind.STATE, fill("dd")), header("0a") + "06" + "dd" * 32),
    Kind.BODY: (Part(7, PartKind.GLOBALS, b"abc"), header("0b") + "04" + "03000000" + "616263"),
    Kind.PROPOSAL: (
        ChangeProposal(7, 2, b"abc"),
        header("0c") + "0200" + "03000000" + "616263" + SIGNED_HEX,
    ),
}


def refusal(data: bytes) -> str | None:
    """Return why bytes are refused; if they are not, check that no others encode the message."""
    try:
        found = decode(data)
    except Refused as why:
        return str(why)
    assert found.wire == data
    assert found == Message(found.run, found.body, encode(found.run, found.body), found.signature)
    return None


@pytest.mark.parametrize("kind", Kind)
def test_the_layout_is_as_written_down(kind: Kind) -> None:
    body, text = GOLDEN[kind]
    assert signed_message(body).wire.hex() == text
    found = decode(bytes.fromhex(text))
    assert (found.body, found.run, found.body.kind) == (body, RUN, kind)


def test_values_and_digests_are_as_written_down() -> None:
    assert (
        RECORD.value(RUN).hex()
        == "54d75d2bc4a8db05fd4ef0a540d7b90acf6cc021d9bb5a821554a5fcc62f24ed"
    )
    assert (
        part_digest(PartKind.SET, b"abc").hex()
        == "52d5431d78578e721024a4ab689f594482e6fa5c4888f79f17cef9f5d0dfac7b"
    )
    assert (
        signed_message(LIST).digest.hex()
        == "350b8eb5c778774b6028f30efaf6ffc048be8acf1481ba2005144026a025c995"
    )
    assert len({part_digest(what, b"abc") for what in PARTS}) == len(PARTS)
    assert RECORD.value(bytes(32)) != RECORD.value(RUN)


@pytest.mark.parametrize("kind", Kind)
@given(data=st.data())
def test_what_is_encoded_is_decoded(kind: Kind, data: st.DataObject) -> None:
    sent = data.draw(messages(kind))
    found = decode(sent.wire)
    assert found.body == sent.body
    assert (found, found.wire, found.run, found.digest) == (sent, sent.wire, RUN, sent.digest)
    assert all(m.wire in sent.wire for m in nested_in(found.body))


@given(st.binary(max_size=300))
@example(b"")
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    refusal(data)


@given(st.sampled_from(Kind), st.binary(max_size=300))
def test_any_bytes_after_a_header_too(kind: Kind, data: bytes) -> None:
    refusal(bytes.fromhex(header(f"{kind:02x}")) + data)


@given(any_message, st.data())
def test_one_byte_changed(sent: Message, data: st.DataObject) -> None:
    wire = sent.wire
    at = data.draw(st.integers(0, len(sent.wire) - 1))
    refusal(wire[:at] + bytes([wire[at] ^ data.draw(st.integers(1, 255))]) + wire[at + 1 :])


@pytest.mark.parametrize("kind", Kind)
def test_every_byte_changed_in_every_bit(kind: Kind) -> None:
    wire = signed_message(GOLDEN[kind][0]).wire
    for at in range(len(wire)):
        for bit in range(8):
            refusal(wire[:at] + bytes([wire[at] ^ 1 << bit]) + wire[at + 1 :])


@pytest.mark.parametrize("kind", Kind)
def test_no_part_of_a_message_and_nothing_longer_is_one(kind: Kind) -> None:
    wire = signed_message(GOLDEN[kind][0]).wire
    assert all(refusal(wire[:size]) for size in range(len(wire)))
    assert all(
        refusal(wire + fill(byte, size)) for byte in ("00", "ff") for size in (1, 2, 64, 100)
    )


@given(any_message, st.binary(min_size=1, max_size=80), st.data())
def test_bytes_put_in_or_cut_out(sent: Message, extra: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(sent.wire)))
    refusal(sent.wire[:at] + extra + sent.wire[at:])
    refusal(sent.wire[:at] + sent.wire[at + len(extra) :])


BARE = {kind: GOLDEN[kind][1] for kind in Kind}
REFUSALS = {
    "another version": (
        "version 1 of the protocol",
        "6665647266712d31" + BARE[Kind.FETCH][16:],
    ),
    "kind 0": ("of kind 0", header("00") + "00" * 100),
    "kind 13": ("of kind 13", header("0d") + "00" * 100),
    "no signature": ("signature is missing", header("05") + "00" * 63),
    "a part that is none": ("kind 1 can be", header("0b") + "01" + "00000000"),
    "nothing to fetch": ("kind 0 can be", header("0a") + "00" * 33),
    "a certificate of lists": ("certificate of kind 3", header("08") + "03" + COMMITTED_HEX[2:]),
    "a server twice": (
        "not in ascending order",
        header("08") + "06" + "00000000" + RECORD_HEX + "02000000" + ("0300" + "c1" * 64) * 2,
    ),
    "servers out of order": (
        "not in ascending order",
        header("08")
        + "06"
        + "00000000"
        + RECORD_HEX
        + "02000000"
        + ("0300" + "c1" * 64)
        + ("0100" + "c1" * 64),
    ),
    "an entry twice": (
        "ascending order",
        header("03") + "0200" + "02000000" + ("01000000" + "d3" * 32) * 2 + SIGNED_HEX,
    ),
    "a flag of 2": (
        "flag 2: expected",
        header("07") + "04000000" + "0200" + "02" + "00" + SIGNED_HEX,
    ),
    "evidence in evidence": (
        "kind 9 does not belong",
        header("09") + sized_hex(BARE[Kind.EVIDENCE]) * 2,
    ),
    "a proposal with a vote for a list": (
        "kind 5 does not belong",
        header("04")
        + "04000000"
        + "0300"
        + RECORD_HEX
        + "01000000"
        + sized_hex(BARE[Kind.PREPARE])
        + "00000000"
        + SIGNED_HEX,
    ),
    "nested of another run": (
        "one run inside",
        (header("09") + sized_hex(LIST_HEX) * 2).replace("aa" * 32, "ab" * 32, 1),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_and_why(name: str) -> None:
    why, text = REFUSALS[name]
    assert why in str(refusal(bytes.fromhex(text)))


@given(entries, entries)
def test_a_set_of_uploads_and_proposals(uploads: Entries, proposals: Entries) -> None:
    found = Inputs(uploads, proposals)
    content = found.write()
    assert Inputs.decode(content) == found
    for other in (content + b"\0", content[:-1]):
        with pytest.raises(Refused):
            Inputs.decode(other)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_set_or_refused(content: bytes) -> None:
    with suppress(Refused):
        assert Inputs.decode(content).write() == content


# Memory: a count or length is believed only as far as the bytes are there.


def peak(data: bytes) -> int:
    """Return how many bytes are allocated at most while these are decoded."""
    tracemalloc.start()
    try:
        with suppress(Refused):
            decode(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = ("ffffffff", "ffffff7f", "00000001", "00100000")
PROMISES = {
    "upload": header("01") + "00000000" + "{}",
    "list": header("03") + "0000" + "{}",
    "lists": header("04") + "00000000" + "0000" + RECORD_HEX + "{}",
    "changes": header("04") + "00000000" + "0000" + RECORD_HEX + "00000000" + "{}",
    "nested": header("04") + "00000000" + "0000" + RECORD_HEX + "01000000" + "{}",
    "certificate": header("08") + "05" + "00000000" + RECORD_HEX + "{}",
    "evidence": header("09") + "{}",
    "body": header("0b") + "03" + "{}",
}


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize("count", HUGE)
def test_a_promise_costs_nothing(name: str, count: str) -> None:
    data = bytes.fromhex(PROMISES[name].format(count) + "00" * 200)
    why = str(refusal(data))
    assert ("items" if name in SMALL else "bytes at offset") in why
    assert peak(data) < 10 * len(data) + 2**13


# The smallest item of each kind, and the number of bytes after the last item.
SMALL: dict[str, tuple[Callable[[int], bytes], int]] = {
    "list": (lambda i: struct.pack("<I32x", i), 68),
    "lists": (lambda i: sized(signed_message(UploadList(7, i, ())).wire), 68),
    "changes": (lambda i: sized(signed_message(ViewChange(7, 1, i, None, None)).wire), 64),
    "certificate": (lambda i: struct.pack("<H64x", i), 0),
}


@pytest.mark.parametrize("name", SMALL)
def test_many_small_items_cost_a_small_multiple_of_their_bytes(name: str) -> None:
    item, after = SMALL[name]
    number = 20_000 if name == "list" else MAX_SERVERS
    items = b"".join(map(item, range(number)))
    data = (
        bytes.fromhex(PROMISES[name].format("")) + struct.pack("<I", number) + items + bytes(after)
    )
    assert refusal(data) is None
    assert peak(data) < 10 * len(data)


@given(any_message, st.data())
def test_memory_follows_the_input(sent: Message, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(sent.wire) - 1))
    changed = sent.wire[:at] + data.draw(st.binary(min_size=1, max_size=4)) + sent.wire[at + 1 :]
    assert peak(changed) < 20 * len(changed) + 2**14


def test_a_reader_stops_at_its_end() -> None:
    reader = Reader(b"abc")
    assert (reader.take(2), reader.left(), reader.take(0)) == (b"ab", 1, b"")
    with pytest.raises(Refused, match="expected 2 bytes at offset 2, but only 1 are left"):
        reader.take(2)
    with pytest.raises(Refused, match="1 unexpected bytes"):
        reader.end()


@pytest.mark.parametrize("kind", Kind)
def test_who_must_have_signed(kind: Kind) -> None:
    body = GOLDEN[kind][0]
    if kind == Kind.UPLOAD:
        expected = ~258
    else:
        expected = getattr(body, "server", None)
    assert author(body) == expected
    assert (author(body) is not None) == (kind in SIGNED)
    assert KINDS[kind] is type(body)
    assert kind in BODIES


def test_messages_are_equal_by_their_bytes() -> None:
    one = signed_message(LIST)
    other = message(LIST, fill("5b", 64))
    assert one == signed_message(LIST)
    assert one != other
    assert one.digest == other.digest
    assert len({one, signed_message(LIST), other}) == 2
    assert one != LIST
    assert (
        unsigned(RUN, Fetch(7, PartKind.CERT)).wire
        == unsigned(RUN, Fetch(7, PartKind.CERT, bytes(32))).raw
    )
    assert "server=2" in repr(one)


def test_a_signature_is_made_when_it_is_first_asked_for_and_once() -> None:
    asked: list[bytes] = []

    def sign(data: bytes) -> bytes:
        asked.append(data)
        return bytes(64)

    message = Message(RUN, Upload(1, 2, b"3"), None, sign)
    assert not asked
    assert message.wire == message.raw + bytes(64)
    assert message.signature == bytes(64)
    assert asked == [message.raw]
