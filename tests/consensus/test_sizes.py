"""Honest messages fit into their sizes exactly; larger ones are refused before they are read."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedrfq.consensus.messages import (
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
    PartKind,
    Prepare,
    PrePrepare,
    Receipt,
    Record,
    Upload,
    UploadList,
    ViewChange,
    decode,
    encode,
)
from fedrfq.consensus.sizes import sizes_of
from fedrfq.consensus.wire import Refused, Sizes
from fedrfq.node.transport.budget import KIB, MIB, Limits
from fedrfq.node.transport.fair_queue import MAX_CLIENT_BYTES, MAX_SERVER_BYTES
from fedrfq.prototypes.fixed_point import FULL_PRECISION, size
from support.handmade import committee
from support.paths import ROOT

SERVERS = 4
CLIENTS = 20
UPLOAD = 5_000
RULES = committee(SERVERS, CLIENTS)
SIZES = sizes_of(RULES.roster, UPLOAD)
RECORD = Record(7, *[bytes(32)] * 7)


def signed(body: AnyMessage) -> Message:
    return Message(RULES.run, body, encode(RULES.run, body), bytes(64))


def certificate(servers: int = SERVERS) -> Certificate:
    return Certificate(
        Kind.COMMIT, 1, RECORD, tuple((server, bytes(64)) for server in range(servers))
    )


def upload_list(entries: int = 2 * (SERVERS + CLIENTS)) -> Message:
    return signed(UploadList(7, 1, tuple((entry, bytes(32)) for entry in range(entries))))


def view_change() -> Message:
    return signed(ViewChange(7, 1, 1, certificate(), certificate()))


def proposal(lists: int = SERVERS, changes: int = SERVERS) -> Message:
    body = PrePrepare(7, 1, 1, RECORD, (upload_list(),) * lists, (view_change(),) * changes)
    return signed(body)


LARGEST: dict[Kind, Message] = {
    Kind.UPLOAD: signed(Upload(7, 1, bytes(UPLOAD))),
    Kind.RECEIPT: signed(Receipt(7, 1, 1, bytes(32))),
    Kind.PROPOSAL: signed(ChangeProposal(7, 1, bytes(UPLOAD))),
    Kind.LIST: upload_list(),
    Kind.PREPREPARE: proposal(),
    Kind.PREPARE: signed(Prepare(7, 1, bytes(32), 1)),
    Kind.COMMIT: signed(Commit(7, 1, bytes(32), 1)),
    Kind.VIEWCHANGE: view_change(),
    Kind.CERT: RULES.unsigned(Cert(7, certificate())),
    Kind.EVIDENCE: RULES.unsigned(Evidence(7, proposal(), proposal())),
    Kind.FETCH: RULES.unsigned(Fetch(7, PartKind.SET, bytes(32))),
}


@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_honest_message_of_each_kind_has_just_this_size(kind: Kind) -> None:
    message = LARGEST[kind]
    assert len(message.wire) == SIZES.by_kind[kind]
    assert decode(message.wire, SIZES) == message


def test_every_kind_has_a_size() -> None:
    assert {*LARGEST, Kind.BODY} == set(Kind) == set(SIZES.by_kind)


def test_the_threat_model_states_these_sizes() -> None:
    """Its numbers are for the same servers and clients, and for 10 classes of 24 values."""
    sizes = sizes_of(RULES.roster, size(np.array([10]), 24, FULL_PRECISION)).by_kind
    text = (ROOT / "docs" / "concepts" / "threat-model.md").read_text(encoding="utf-8")
    for kind in (Kind.UPLOAD, Kind.LIST, Kind.VIEWCHANGE, Kind.PREPREPARE, Kind.CERT):
        assert f"| {sizes[kind]:,} |" in text, kind.name


def test_the_threat_model_states_what_frames_may_wait() -> None:
    text = " ".join((ROOT / "docs" / "concepts" / "threat-model.md").read_text("utf-8").split())
    waiting = (
        f"{MAX_SERVER_BYTES // MIB} MiB and one frame of each server or courier, "
        f"{MAX_CLIENT_BYTES // KIB} KiB and one frame of each client"
    )
    assert waiting in text
    assert f"Outgoing, {Limits().total_queue_bytes // MIB} MiB wait in all" in text


TOO_MUCH = {
    "a byte too much in an upload": signed(Upload(7, 1, bytes(UPLOAD + 1))),
    "too many entries": upload_list(2 * (SERVERS + CLIENTS) + 1),
    "too many votes": RULES.unsigned(Cert(7, certificate(SERVERS + 1))),
    "too many lists": proposal(SERVERS + 1, 0),
    "too many view changes": proposal(0, SERVERS + 1),
    "a large upload in evidence": RULES.unsigned(
        Evidence(7, *[signed(Upload(7, 1, bytes(UPLOAD + 1)))] * 2)
    ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_no_honest_party_says_is_refused(name: str) -> None:
    data = TOO_MUCH[name].wire
    decode(data)
    with pytest.raises(Refused):
        decode(data, SIZES)


@pytest.mark.parametrize("name", ["too many entries", "too many votes", "too many lists"])
def test_counts_are_bounded_where_the_bytes_would_do(name: str) -> None:
    """Small items come in greater numbers than large ones, and each takes time to read."""
    roomy = Sizes(SIZES.servers, SIZES.entries, dict.fromkeys(SIZES.by_kind, 1 << 30))
    with pytest.raises(Refused, match="items"):
        decode(TOO_MUCH[name].wire, roomy)


def test_two_megabytes_of_nested_messages_take_no_time() -> None:
    """They took 140 ms and more: a round of 50 ms became one of a second."""
    nested = (signed(UploadList(7, 1, ())),) * (2**20 // 119)
    half = signed(PrePrepare(7, 1, 1, RECORD, nested, ()))
    data = RULES.unsigned(Evidence(7, half, half)).wire
    assert len(data) > 2_000_000
    start = time.perf_counter()
    for _ in range(1000):
        with pytest.raises(Refused):
            decode(data, SIZES)
    assert (time.perf_counter() - start) / 1000 < 0.001


def test_only_signed_messages_are_nested() -> None:
    """Otherwise evidence in evidence in evidence could be of any depth."""
    inner = LARGEST[Kind.EVIDENCE]
    assert inner.body.kind not in SIGNED
    with pytest.raises(Refused, match="does not belong here"):
        decode(RULES.unsigned(Evidence(7, inner, inner)).wire)
