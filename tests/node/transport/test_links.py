"""Connections on real sockets: frames of honest peers arrive once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from fedrfq.node.membership.identity import Identity
from fedrfq.node.transport import tls
from fedrfq.node.transport.dial import Backoff
from fedrfq.node.transport.frames import header
from fedrfq.node.transport.link import Link
from support.wires import QUICK, USUAL, Net, Raw, identities, run, unlogged, until


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Identity]:
    return identities(tmp_path_factory.mktemp("links") / "federation")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with unlogged(caplog):
        yield


def test_both_ways_between_all(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        links = await net.all(0, 1, 2, 3, -1, -2)
        await until(lambda: net.links[0].connected() == {1, 2, 3, -1, -2})
        assert net.links[-1].connected() == {0, 1, 2, 3}, "clients are not connected to each other"
        for link in links:
            for peer in link.connected():
                link.send(peer, b"to %d" % peer)
                link.send(peer, b"again")
        await until(
            lambda: all(
                len(net.heard[party]) == 2 * len(net.links[party].connected())
                for party in net.links
            )
        )

    net = run(parties, story)
    for party, heard in net.heard.items():
        assert {data for _, data in heard} == {b"to %d" % party, b"again"}
        for peer in {peer for peer, _ in heard}:
            from_peer = [data for other, data in heard if other == peer]
            assert from_peer == [b"to %d" % party, b"again"], "in order"
    assert set(net.seen[0]) == {
        (peer, whether) for peer in (1, 2, 3, -1, -2) for whether in (True, False)
    }
    assert net.links[0].counts["frames out"] == 10
    assert net.links[0].counts["connections"] == 5, "one a pair"


def test_a_transport_need_not_be_of_asyncio(parties: dict[int, Identity]) -> None:
    """Those of uvloop are not, and a link that refuses them waits for its handshake for ever."""
    written: list[bytes] = []

    class Transport:
        def write(self, data: bytes) -> None:
            written.append(data)

        def get_write_buffer_size(self) -> int:
            return 0

    async def story(net: Net) -> None:
        links = await net.start(3)
        link = Link(links, tls.client_context(parties[3]), 0)
        link.connection_made(Transport())  # type: ignore[arg-type]
        links.on_closed(link)

    run(parties, story)
    assert written, "the handshake has begun"


def note_writes(monkeypatch: pytest.MonkeyPatch, writes: list[int]) -> None:
    """Record the sizes of what is written to any connection from now on."""
    write = Link._write
    monkeypatch.setattr(
        Link,
        "_write",
        lambda link, data: (writes.append(len(data)) if data else None, write(link, data)),
    )


def test_all_frames_of_a_turn_are_one_write(
    parties: dict[int, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []

    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        await until(a.connected)
        note_writes(monkeypatch, writes)
        for number in range(100):
            a.send(-1, b"%d" % number)
        await until(lambda: len(net.heard[-1]) == 100)
        monkeypatch.undo()

    assert run(parties, story).heard[-1] == [(0, b"%d" % number) for number in range(100)]
    assert len([size for size in writes if size]) == 1


def test_large_frames(parties: dict[int, Identity]) -> None:
    large = bytes(range(256)) * (1 << 14)
    limits = replace(QUICK, server=replace(USUAL, frame_bytes=len(large), queue_bytes=1 << 24))

    async def story(net: Net) -> None:
        (_, b) = await net.all(0, 1, limits=limits)
        b.send(0, large)
        b.send(0, b"small")
        await until(lambda: len(net.heard[0]) == 2)

    assert run(parties, story).heard[0] == [(1, large), (1, b"small")]


def test_stop_sends_what_is_queued(parties: dict[int, Identity]) -> None:
    large = bytes(1 << 16)

    async def story(net: Net) -> None:
        a, b = await net.all(
            0, -1, limits=replace(QUICK, server=replace(USUAL, queue_bytes=1 << 25))
        )
        for _ in range(200):
            b.send(0, large)
        await b.stop()
        assert not b.connected()
        await until(lambda: not a.connected())

    assert run(parties, story).heard[0] == [(-1, large)] * 200


def test_who_comes_after_the_stop_is_sent_away(parties: dict[int, Identity]) -> None:
    """A connection may be accepted just before the stop and be reported after it."""

    async def story(net: Net) -> None:
        a = await net.start(0)
        b = await net.start(1)
        await b.stop()
        link = Link(b, tls.client_context(parties[1]), 0)
        await asyncio.get_running_loop().create_connection(lambda: link, *a.address)
        await until(link.gone.done)
        assert b.counts["refused: stopped"] == 1

    run(parties, story)


def test_nothing_sent_to_nobody(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        a.send(2, b"x")
        a.send(77, b"x")

    assert run(parties, story).links[0].counts["unsent"] == 2


def test_reconnects_after_the_peer_died_and_came_back(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, b, c = await net.all(0, 1, -1)
        address = a.address
        await a.stop()
        await until(lambda: c.connected() == {1} and not b.connected() - {-1})
        await until(lambda: b.counts["refused: unreachable"] and c.counts["refused: unreachable"])
        again = await net.start(0, at=address)
        await until(lambda: again.connected() == {1, -1} and 0 in b.connected() & c.connected())
        c.send(0, b"back")
        await until(lambda: net.heard[0])

    net = run(parties, story)
    assert net.heard[0] == [(-1, b"back")]
    assert net.seen[-1].count((0, True)) == 2


def test_waits_grow_up_to_the_longest_and_begin_anew_after_a_connection_that_held() -> None:
    backoff = Backoff(1.0, 10.0, Random(0))
    delays = [backoff.after(0.0) for _ in range(40)]
    for delay, longest in zip(delays, [1, 2, 4, 8] + 36 * [10], strict=True):
        assert 0.5 * longest <= delay <= longest
    assert len(set(delays[4:])) == 36, "parties do not come back in step"
    assert backoff.after(9.9) >= 5.0, "who is cut off again and again is no better"
    assert backoff.after(10.1) <= 1.0
    assert 1.0 <= backoff.after(0.0) <= 2.0


def test_a_second_connection_replaces_the_first(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0)
        first = await Raw.dial(parties[-1], a.address)
        await until(a.connected)
        second = await Raw.dial(parties[-1], a.address)
        await first.ended()
        assert a.connected() == {-1}
        second.writer.write(header(b"new") + b"new")
        await until(lambda: net.heard[0])
        second.writer.transport.abort()
        await until(lambda: not a.connected())

    net = run(parties, story)
    assert net.heard[0] == [(-1, b"new")]
    assert net.seen[0] == [(-1, True), (-1, False), (-1, True), (-1, False)]
    assert net.links[0].counts["dropped: replaced"] == 1


def test_idle_peers_ping_and_stay(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, b = await net.all(0, -1, limits=replace(QUICK, ping_s=0.02, silent_s=5.0))
        await until(lambda: a.counts["frames in"] > 5 and b.counts["frames in"] > 5)
        assert b.connected() == {0}

    net = run(parties, story)
    assert not net.heard[0]
    assert net.links[0].counts["connections"] == 1


def test_a_link_that_finishes_sends_what_was_queued_in_this_turn(
    parties: dict[int, Identity],
) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        a.send(-1, b"last")
        a._peers[-1].finish()
        await until(lambda: net.heard[-1])

    assert run(parties, story).heard[-1] == [(0, b"last")]
