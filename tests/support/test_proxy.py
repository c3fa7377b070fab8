"""The proxy that simulates a bad network: what it passes, loses and holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from support.proxy import CALM, Proxy, Weather

SAID = bytes(range(256)) * 8
Use = Callable[[Proxy, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def through(proxy_of: Callable[[int], Proxy], use: Use) -> None:
    """Yield a connection through a proxy to an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = proxy_of(server.sockets[0].getsockname()[1])
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            await use(proxy, reader, writer)
        finally:
            writer.close()
            await proxy.stop()
            server.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    "weather",
    [CALM, Weather(piece=7), Weather((0.001, 0.01), piece=300)],
    ids=["calm", "split", "slow"],
)
def test_what_is_said_arrives_in_order(weather: Weather) -> None:
    async def use(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SAID)
        assert await reader.readexactly(len(SAID)) == SAID
        assert proxy.connections == 1

    through(lambda port: Proxy(port, Random(0), weather), use)


def test_a_split_is_seen_by_the_other_end() -> None:
    async def use(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SAID)
        assert len(await reader.read(len(SAID))) < len(SAID)

    through(lambda port: Proxy(port, Random(0), Weather((0.001, 0.002), piece=5)), use)


def test_what_is_dropped_never_arrives() -> None:
    async def use(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"lost")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        proxy.weather = CALM
        writer.write(b"kept")
        assert await reader.readexactly(4) == b"kept"

    through(lambda port: Proxy(port, Random(0), Weather(drop=1.0)), use)


@pytest.mark.parametrize("by_chance", [True, False])
def test_a_cut_ends_the_connection_and_not_the_proxy(by_chance: bool) -> None:
    async def use(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        proxy.weather = Weather(cut=1.0 if by_chance else 0.0)
        writer.write(b"bye")
        if not by_chance:
            proxy.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(100)
        proxy.weather = CALM
        again, other = await asyncio.open_connection("127.0.0.1", proxy.port)
        other.write(b"again")
        assert await again.readexactly(5) == b"again"
        other.close()

    through(lambda port: Proxy(port, Random(0)), use)


def test_who_is_apart_is_heard_once_together_again() -> None:
    apart: set[int | None] = set()

    async def use(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        apart.add(5)
        late, other = await asyncio.open_connection("127.0.0.1", proxy.port)
        for each in (writer, other):
            each.write(b"two")
        for each in (reader, late):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(each.read(1), 0.2)
        apart.clear()
        assert await reader.readexactly(3) == await late.readexactly(3) == b"two"
        other.close()

    through(
        lambda port: Proxy(port, Random(0), who=lambda port: 5, apart=lambda name: name in apart),
        use,
    )


def test_a_target_that_is_not_there_ends_the_connection() -> None:
    async def use(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.target = 1
        gone, other = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await gone.readexactly(1)
        other.close()

    through(lambda port: Proxy(port, Random(0)), use)
