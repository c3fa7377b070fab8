"""Connections on real sockets: what honest peers say arrives, and whatever others do is counted, and bounded."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from parties import founded

from fedrfq.net import tls
from fedrfq.net.budget import Limits, Pace, client_pace, server_pace
from fedrfq.net.frames import EMPTY, header
from fedrfq.net.identity import Identity, load
from fedrfq.net.link import Link
from fedrfq.net.link_dial import Waits
from fedrfq.net.links import Links

PATIENCE_S = 30.0
LOOPBACK = ("127.0.0.1", 0)
USUAL = Pace(frame=1 << 16, queue=1 << 20, frames_s=1e6, bytes_s=1e9)
QUICK = Limits(USUAL, USUAL, backoff_s=(0.01, 0.05), drain_s=5.0)
HELLO = bytes.fromhex("16030100050100000100")  # the beginning of a TLS handshake


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Identity]:
    """Four servers and three clients."""
    folder = tmp_path_factory.mktemp("links") / "federation"
    founded(folder, 4, 3)
    return {party: load(folder / (f"server-{party}" if party >= 0 else f"client-{~party}")) for party in range(-3, 4)}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The client of another federation."""
    folder = tmp_path_factory.mktemp("stranger") / "federation"
    founded(folder, 4, 1)
    return load(folder / "client-0")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that is done here may be logged by asyncio, as a traceback least of all."""
    with caplog.at_level(logging.WARNING):
        yield
    assert not caplog.records


class Net:
    """Parties of one loop, what each has heard, and who came and went."""

    def __init__(self, parties: dict[int, Identity]) -> None:
        self.parties, self.links = parties, dict[int, Links]()
        self.heard: dict[int, list[tuple[int, bytes]]] = {}
        self.seen: dict[int, list[tuple[int, bool]]] = {}

    async def start(self, party: int, limits: Limits = QUICK, at: tuple[str, int] = LOOPBACK) -> Links:
        """It dials those that were started before."""
        heard = self.heard[party] = []
        seen = self.seen[party] = []
        links = Links(self.parties[party], lambda *frame: heard.append(frame), limits, Random(0), at if party >= 0 else None)
        links.on_peer = lambda *peer: seen.append(peer)
        links.addresses = {server: other.address for server, other in self.links.items() if server >= 0}
        self.links[party] = links
        await links.start()
        return links

    async def all(self, *parties: int, limits: Limits = QUICK) -> list[Links]:
        """Started in this order, and connected."""
        links = [await self.start(party, limits) for party in parties]
        await until(lambda: all(len(each.connected()) >= len(each.addresses) for each in links))
        return links

    async def stop(self) -> None:
        await asyncio.gather(*(links.stop() for links in self.links.values()))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


def run(parties: dict[int, Identity], story: Callable[[Net], Awaitable[None]]) -> Net:
    async def whole() -> Net:
        trouble: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
        net = Net(parties)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(net)
        finally:
            await net.stop()
        assert not trouble
        assert len(asyncio.all_tasks()) == 1, "nothing goes on after a stop"
        return net

    return asyncio.run(whole())


class Raw:
    """A peer that can do anything: TLS with an identity of its choice, and bytes of its choice."""

    @staticmethod
    async def dial(identity: Identity, address: tuple[str, int], limit: int = 1 << 16) -> Raw:
        context = tls.client_context(identity)
        context.verify_mode = ssl.CERT_NONE
        raw = Raw()
        raw.reader, raw.writer = await asyncio.open_connection(*address, ssl=context, limit=limit)
        return raw

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ended(self) -> None:
        """Until the other end has hung up."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except (OSError, ssl.SSLError):
            pass
        self.writer.transport.abort()


def test_both_ways_between_all(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        links = await net.all(0, 1, 2, 3, -1, -2)
        await until(lambda: net.links[0].connected() == {1, 2, 3, -1, -2})
        assert net.links[-1].connected() == {0, 1, 2, 3}, "clients are not connected to each other"
        for link in links:
            for peer in link.connected():
                link.send(peer, b"to %d" % peer)
                link.send(peer, b"again")
        await until(lambda: all(len(net.heard[party]) == 2 * len(net.links[party].connected()) for party in net.links))

    net = run(parties, story)
    for party, heard in net.heard.items():
        assert {data for _, data in heard} == {b"to %d" % party, b"again"}
        for peer in {peer for peer, _ in heard}:
            assert [data for other, data in heard if other == peer] == [b"to %d" % party, b"again"], "in order"
    assert set(net.seen[0]) == {(peer, whether) for peer in (1, 2, 3, -1, -2) for whether in (True, False)}
    assert net.links[0].counts["frames out"] == 10
    assert net.links[0].counts["connections"] == 5, "one a pair"


def note_writes(monkeypatch: pytest.MonkeyPatch, writes: list[int]) -> None:
    """From now on, the sizes of what is written to any connection."""
    write = Link._write
    monkeypatch.setattr(Link, "_write", lambda link, data: (writes.append(len(data)) if data else None, write(link, data)))


def test_all_frames_of_a_turn_are_one_write(parties: dict[int, Identity], monkeypatch: pytest.MonkeyPatch) -> None:
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
    limits = replace(QUICK, server=replace(USUAL, frame=len(large), queue=1 << 24))

    async def story(net: Net) -> None:
        (_, b) = await net.all(0, 1, limits=limits)
        b.send(0, large)
        b.send(0, b"small")
        await until(lambda: len(net.heard[0]) == 2)

    assert run(parties, story).heard[0] == [(1, large), (1, b"small")]


def test_stop_sends_what_is_queued(parties: dict[int, Identity]) -> None:
    large = bytes(1 << 16)

    async def story(net: Net) -> None:
        a, b = await net.all(0, -1, limits=replace(QUICK, server=replace(USUAL, queue=1 << 25)))
        for _ in range(200):
            b.send(0, large)
        await b.stop()
        assert not b.connected()
        await until(lambda: not a.connected())

    assert run(parties, story).heard[0] == [(-1, large)] * 200


def test_stop_is_bounded_where_a_peer_does_not_read(parties: dict[int, Identity]) -> None:
    limits = replace(QUICK, client=replace(USUAL, queue=1 << 26), drain_s=0.05)

    async def story(net: Net) -> None:
        a = await net.start(0, limits)
        with closing(await blocked(parties[-1], a.address)):
            await until(a.connected)
            for _ in range(200):
                a.send(-1, bytes(1 << 16))
            await a.stop()
            assert not a.connected()

    assert run(parties, story).links[0].counts["dropped: stopped"] == 1


def test_who_comes_after_the_stop_is_sent_away(parties: dict[int, Identity]) -> None:
    """A connection may have been accepted, and not yet be known."""

    async def story(net: Net) -> None:
        a, b = await net.start(0), await net.start(1)
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
    waits = Waits(1.0, 10.0, Random(0))
    taken = [waits.after(0.0) for _ in range(40)]
    assert all(0.5 * want <= wait <= want for wait, want in zip(taken, [1, 2, 4, 8] + 36 * [10], strict=True))
    assert len(set(taken[4:])) == 36, "parties do not come back in step"
    assert waits.after(9.9) >= 5.0, "who is cut off again and again is no better"
    assert waits.after(10.1) <= 1.0
    assert 1.0 <= waits.after(0.0) <= 2.0


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


def test_an_oversized_frame_ends_the_connection(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0)
        raw = await Raw.dial(parties[-1], a.address)
        raw.writer.write(header(b"a") + b"a" + struct.pack("<I", USUAL.frame + 1))
        await raw.ended()

    net = run(parties, story)
    assert net.heard[0] == [(-1, b"a")]
    assert net.links[0].counts["dropped: oversized frame"] == 1


def test_a_dropped_peer_is_not_heard_any_more(parties: dict[int, Identity]) -> None:
    """Also of what had come already: a frame that makes no sense may be followed by thousands."""

    async def story(net: Net) -> None:
        a = await net.start(0)
        a._hear = lambda peer, data: (net.heard[0].append((peer, data)), a.drop(peer, "nonsense"), a.send(peer, b"x"))
        raw = await Raw.dial(parties[-1], a.address)
        raw.writer.write((header(b"a") + b"a") * 3000)
        await raw.ended()
        a.drop(-1, "not there")

    net = run(parties, story)
    assert net.heard[0] == [(-1, b"a")]
    assert net.links[0].counts["dropped: nonsense"] == 1
    assert net.links[0].counts["unsent"] == 1


LONG = b"\x16\x03\x01\xff\xff" + bytes(70_000)  # a record longer than any


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
    """A record that does not decrypt."""

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


def test_a_certificate_of_another_federation(parties: dict[int, Identity], stranger: Identity) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0)
        raw = await Raw.dial(stranger, a.address)
        await raw.ended()
        assert a.counts["refused: wrong certificate"] == 1
        assert not net.seen[0]

    run(parties, story)


def test_the_stranger_itself_never_thinks_it_is_connected(parties: dict[int, Identity], stranger: Identity) -> None:
    """TLS 1.3 lets the one who dials believe in the handshake before its certificate was looked at."""

    async def story(net: Net) -> None:
        a = await net.start(0)
        links = Links(replace(stranger, charter=parties[-1].charter), lambda *_: None, QUICK, Random(0))
        links.addresses = {0: a.address}
        seen: list[int] = []
        links.on_peer = lambda peer, _: seen.append(peer)
        net.links[-1] = links
        await links.start()
        await until(lambda: a.counts["refused: wrong certificate"] >= 3)
        assert not seen

    run(parties, story)


@pytest.mark.parametrize("caller", [0, 1])
def test_nobody_is_called_by_itself_or_by_whom_it_calls(parties: dict[int, Identity], caller: int) -> None:
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


def test_idle_peers_ping_and_stay(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, b = await net.all(0, -1, limits=replace(QUICK, ping_s=0.02, silent_s=5.0))
        await until(lambda: a.counts["frames in"] > 5 and b.counts["frames in"] > 5)
        assert b.connected() == {0}

    net = run(parties, story)
    assert not net.heard[0]
    assert net.links[0].counts["connections"] == 1


def test_a_silent_peer_is_dropped(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, silent_s=0.1))
        raw = await Raw.dial(parties[-1], a.address)
        await raw.ended()
        await until(lambda: not a.connected())

    assert run(parties, story).links[0].counts["dropped: silent"] == 1


async def blocked(identity: Identity, address: tuple[str, int]) -> ssl.SSLSocket:
    """Connected as this party, with the smallest of buffers, and never reading."""
    context = tls.client_context(identity)
    context.verify_mode = ssl.CERT_NONE

    def connect() -> ssl.SSLSocket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(address)
        return context.wrap_socket(plain)

    return await asyncio.to_thread(connect)


def test_a_slow_reader_is_dropped_and_others_are_not(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -2)
        with closing(await blocked(parties[-1], a.address)):
            await until(lambda: -1 in a.connected())
            sent = 0
            while -1 in a.connected():
                a.send(-1, bytes(1 << 14))
                a.send(-2, b"%d" % sent)
                sent += 1
                await asyncio.sleep(0)
            await until(lambda: len(net.heard[-2]) == sent)
        assert a.connected() == {-2}
        assert a.counts["dropped: slow"] == 1

    run(parties, story)


def test_a_turn_that_queues_too_much_is_dropped_at_once(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        await until(a.connected)
        for _ in range(1000):
            a.send(-1, bytes(1 << 14))
        assert a.counts["dropped: slow"] == 1
        assert a.counts["unsent"] == 1000 - (1 << 20 >> 14)

    run(parties, story)


def test_of_all_slow_readers_together_the_slowest_goes(parties: dict[int, Identity]) -> None:
    pace = replace(USUAL, queue=1 << 30)

    async def story(net: Net) -> None:
        a = await net.start(0, Limits(pace, pace, queues=1 << 24, ping_s=0.05, drain_s=0.05))
        with closing(await blocked(parties[-1], a.address)), closing(await blocked(parties[-2], a.address)):
            await until(lambda: a.connected() == {-1, -2})
            for _ in range(500):
                a.send(-1, bytes(1 << 16))
            for _ in range(100):
                a.send(-2, bytes(1 << 16))
            await until(lambda: a.connected() == {-2})
            await a.stop()

    assert run(parties, story).links[0].counts["dropped: slow"] == 1


def test_a_flooding_client_waits_and_others_are_heard(parties: dict[int, Identity]) -> None:
    """What it may send at once is heard, and not much more until time has passed; it stays connected for all its silence."""
    pace = replace(USUAL, frames_s=10.0, burst_s=10.0)

    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=pace, silent_s=0.1))
        raw = await Raw.dial(parties[-1], a.address)
        other = await net.start(-2, replace(QUICK, ping_s=0.01))
        await until(other.connected)
        flood = asyncio.create_task(pour(raw.writer))
        await until(lambda: a.counts["paused"])
        for number in range(50):
            other.send(0, b"%d" % number)
            await asyncio.sleep(0.004)
        await until(lambda: (-2, b"49") in net.heard[0])
        flood.cancel()
        assert a.connected() == {-1, -2}
        assert sum(peer == -1 for peer, _ in net.heard[0]) <= 100 + (1 << 16), "a burst, and one reading"
        assert a.counts["paused"] == 1
        raw.writer.transport.abort()

    run(parties, story)


async def pour(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write((header(b"!") + b"!") * 1000)
        await writer.drain()


def test_a_party_in_debt_is_so_after_coming_back(parties: dict[int, Identity]) -> None:
    pace = replace(USUAL, bytes_s=100.0, burst_s=10.0)

    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=pace))
        for times, size in ((1, 50_000), (2, 1), (3, 1)):
            raw = await Raw.dial(parties[-1], a.address)
            raw.writer.write(header(bytes(size)) + bytes(size))
            await until(lambda times=times: a.counts["paused"] >= times)
            raw.writer.transport.abort()

    run(parties, story)


def test_who_waited_long_enough_is_read_again(parties: dict[int, Identity]) -> None:
    pace = replace(USUAL, frames_s=1000.0, burst_s=0.01)

    async def story(net: Net) -> None:
        a, b = await net.all(0, -1, limits=replace(QUICK, client=pace))
        for number in range(5):
            for _ in range(20):
                b.send(0, b"%d" % number)
            await until(lambda number=number: net.heard[0].count((-1, b"%d" % number)) == 20)
        assert a.counts["paused"] >= 3

    run(parties, story)


def test_who_falls_silent_after_a_wait_is_dropped(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=replace(USUAL, frames_s=1000.0, burst_s=0.01), silent_s=0.1))
        raw = await Raw.dial(parties[-1], a.address)
        raw.writer.write(EMPTY * 30)
        await raw.ended()
        assert a.counts["paused"]

    assert run(parties, story).links[0].counts["dropped: silent"] == 1


def test_what_is_not_a_frame_counts_as_unread_too(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=replace(USUAL, queue=1 << 10)))
        with closing(await blocked(parties[-1], a.address)):
            await until(a.connected)
            link = a._peers[-1]
            for _ in range(1 << 20):
                if not link.closed:
                    link.ping()

    assert run(parties, story).links[0].counts["dropped: slow"] == 1


def test_a_link_that_finishes_sends_what_was_queued_in_this_turn(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        a.send(-1, b"last")
        a._peers[-1].finish()
        await until(lambda: net.heard[-1])

    assert run(parties, story).heard[-1] == [(0, b"last")]


def test_more_connections_than_allowed(parties: dict[int, Identity]) -> None:
    """Strangers lose their places to those who come later; whoever is identified keeps it, and honest parties get in."""

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


def test_paces_follow_from_the_charter(parties: dict[int, Identity]) -> None:
    charter = parties[0].charter
    server, client = server_pace(charter), client_pace(charter)
    assert server.frame > 4 * len(charter.text) + (1 << 21)
    assert charter.task.classes * (4 * charter.task.values + 8) < client.frame < 1 << 13
    assert client.queue > 2 * len(charter.text)
    assert client.frames_s < server.frames_s
    assert client.bytes_s < server.bytes_s
