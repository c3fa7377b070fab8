"""Garbage, strangers and impostors on real sockets are refused, and counted."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.transport.frames import EMPTY, header
from fedrfq.node.transport.links import Links
from support.parties import founded
from support.wires import LOOPBACK, QUICK, USUAL, Net, Raw, identities, run, unlogged, until

HELLO = bytes.fromhex("16030100050100000100")  # the beginning of a TLS handshake
LONG = b"\x16\x03\x01\xff\xff" + bytes(70_000)  # a record longer than TLS allows


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Identity]:
    return identities(tmp_path_factory.mktemp("links") / "federation")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with unlogged(caplog):
        yield


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The client of another federation."""
    folder = tmp_path_factory.mktemp("stranger") / "federation"
    founded(folder, 4, 1)
    return load(folder / "client-0")


def test_an_oversized_frame_ends_the_connection(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0)
        raw = await Raw.dial(parties[-1], a.address)
        raw.writer.write(header(b"a") + b"a" + struct.pack("<I", USUAL.frame_bytes + 1))
        await raw.ended()

    net = run(parties, story)
    assert net.heard[0] == [(-1, b"a")]
    assert net.links[0].counts["dropped: oversized frame"] == 1


def test_a_dropped_peer_is_not_heard_any_more(parties: dict[int, Identity]) -> None:
    """Nor are frames that had arrived already: thousands may follow one that makes no sense."""

    async def story(net: Net) -> None:
        a = await net.start(0)
        a._hear = lambda peer, data: (
            net.heard[0].append((peer, data)),
            a.drop(peer, "nonsense"),
            a.send(peer, b"x"),
        )
        raw = await Raw.dial(parties[-1], a.address)
        raw.writer.write((header(b"a") + b"a") * 3000)
        await raw.ended()
        a.drop(-1, "not there")

    net = run(parties, story)
    assert net.heard[0] == [(-1, b"a")]
    assert net.links[0].counts["dropped: nonsense"] == 1
    assert net.links[0].counts["unsent"] == 1


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), HELLO, LONG])
def test_garbage_instead_of_tls(parties: dict[int, Identity], garbage: bytes) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        _, writer = await asyncio.open_connection(*a.address)
        writer.write(garbage)
        await until(lambda: a.counts["refused: no handshake"] == 1)
        writer.transport.abort()
        assert a.connected() == {-1}

    run(parties, story)


def test_garbage_within_tls(parties: dict[int, Identity]) -> None:
    """Send a record that does not decrypt."""

    async def story(net: Net) -> None:
        a = await net.start(0)
        raw = await Raw.dial(parties[-1], a.address)
        await until(a.connected)
        raw.writer.get_extra_info("socket")._sock.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        await raw.ended()

    assert run(parties, story).links[0].counts["dropped: broken TLS"] == 1


@pytest.mark.parametrize("begun", [b"", HELLO[:5]])
def test_a_handshake_never_finished(parties: dict[int, Identity], begun: bytes) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, handshake_s=0.05))
        _, writer = await asyncio.open_connection(*a.address)
        writer.write(begun)
        await until(lambda: a.counts["refused: slow handshake"] == 1)
        writer.transport.abort()

    run(parties, story)


def test_a_server_that_never_answers_is_dialled_again(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        with closing(socket.create_server(LOOPBACK)) as mute:
            links = Links(parties[-1], lambda *_: None, replace(QUICK, handshake_s=0.05), Random(0))
            links.addresses = {0: mute.getsockname()}
            net.links[-1] = links
            await links.start()
            await until(lambda: links.counts["refused: slow handshake"] >= 2)

    run(parties, story)


def test_a_certificate_of_another_federation(
    parties: dict[int, Identity], stranger: Identity
) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0)
        raw = await Raw.dial(stranger, a.address)
        await raw.ended()
        assert a.counts["refused: wrong certificate"] == 1
        assert not net.seen[0]

    run(parties, story)


def test_the_stranger_itself_never_thinks_it_is_connected(
    parties: dict[int, Identity], stranger: Identity
) -> None:
    """In TLS 1.3 the dialling end is done before its own certificate has been checked."""

    async def story(net: Net) -> None:
        a = await net.start(0)
        links = Links(
            replace(stranger, federation=parties[-1].federation), lambda *_: None, QUICK, Random(0)
        )
        links.addresses = {0: a.address}
        seen: list[int] = []
        links.on_peer = lambda peer, _: seen.append(peer)
        net.links[-1] = links
        await links.start()
        await until(lambda: a.counts["refused: wrong certificate"] >= 3)
        assert not seen

    run(parties, story)


@pytest.mark.parametrize("caller", [0, 1])
def test_nobody_is_called_by_itself_or_by_whom_it_calls(
    parties: dict[int, Identity], caller: int
) -> None:
    async def story(net: Net) -> None:
        b = await net.start(1)
        raw = await Raw.dial(parties[caller], b.address)
        await raw.ended()
        assert b.counts["refused: wrong certificate"] == 1
        assert not net.seen[1]

    run(parties, story)


def test_a_server_in_another_ones_place(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        b = await net.start(1)
        links = Links(parties[-1], lambda *_: None, QUICK, Random(0))
        links.addresses = {0: b.address}
        net.links[-1] = links
        await links.start()
        await until(lambda: links.counts["refused: wrong certificate"] >= 2)
        assert not links.connected()

    run(parties, story)


def test_more_connections_than_allowed(parties: dict[int, Identity]) -> None:
    """Strangers lose their places to later ones; identified parties keep theirs or get in."""

    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1, limits=replace(QUICK, pending=8, pending_per_address=4))
        half_open = await asyncio.gather(*(asyncio.open_connection(*a.address) for _ in range(30)))
        await until(lambda: a.counts["refused: too many"] == 26)
        await net.start(-2)
        await until(lambda: a.connected() == {-1, -2})
        assert a.counts["refused: too many"] <= 27
        assert len(a._links) <= 2 + 4
        for _, writer in half_open:
            writer.transport.abort()

    net = run(parties, story)
    assert net.seen[0][:2] == [(-1, True), (-2, True)]


def test_connections_that_end_leave_nothing_behind(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0)
        for _ in range(5):
            _, writer = await asyncio.open_connection(*a.address)
            writer.transport.abort()
            raw = await Raw.dial(parties[-1], a.address)
            raw.writer.write(EMPTY)
            raw.writer.transport.abort()
        await until(lambda: a.counts["connections"] == 10 and not a._links)
        assert not a._door._waiting
        assert not a._door._by_address

    run(parties, story)
