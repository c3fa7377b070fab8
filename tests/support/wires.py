"""Parties on real sockets in one loop, and a peer that can do anything."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.transport import tls
from fedrfq.node.transport.budget import Limits, Pace
from fedrfq.node.transport.links import Links
from support.parties import founded

PATIENCE_S = 30.0
LOOPBACK = ("127.0.0.1", 0)
USUAL = Pace(frame_bytes=1 << 16, queue_bytes=1 << 20, frames_s=1e6, bytes_s=1e9)
QUICK = Limits(USUAL, USUAL, backoff_s=(0.01, 0.05), drain_s=5.0)


def identities(folder: Path) -> dict[int, Identity]:
    """Four servers and three clients."""
    founded(folder, 4, 3)
    return {
        party: load(folder / (f"server-{party}" if party >= 0 else f"client-{~party}"))
        for party in range(-3, 4)
    }


@contextmanager
def unlogged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if asyncio logs anything, a traceback for instance."""
    with caplog.at_level(logging.WARNING):
        yield
    assert not caplog.get_records("call")


class Net:
    """Parties in one loop, what each has heard, and which peers came and went."""

    def __init__(self, parties: dict[int, Identity]) -> None:
        self.parties = parties
        self.links = dict[int, Links]()
        self.heard: dict[int, list[tuple[int, bytes]]] = {}
        self.seen: dict[int, list[tuple[int, bool]]] = {}

    async def start(
        self, party: int, limits: Limits = QUICK, at: tuple[str, int] = LOOPBACK
    ) -> Links:
        """Start a party; it dials those that were started before."""
        heard = self.heard[party] = []
        seen = self.seen[party] = []
        links = Links(
            self.parties[party],
            lambda *frame: heard.append(frame),
            limits,
            Random(0),
            at if party >= 0 else None,
        )
        links.on_peer = lambda *peer: seen.append(peer)
        links.addresses = {
            server: other.address for server, other in self.links.items() if server >= 0
        }
        self.links[party] = links
        await links.start()
        return links

    async def all(self, *parties: int, limits: Limits = QUICK) -> list[Links]:
        """Start these parties in order and wait until they are connected."""
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
    async def play() -> Net:
        # Whatever asyncio would only log must fail the test.
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        net = Net(parties)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(net)
        finally:
            await net.stop()
        assert not errors
        assert len(asyncio.all_tasks()) == 1, "nothing goes on after a stop"
        return net

    return asyncio.run(play())


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
        """Wait until the other end has hung up."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except (OSError, ssl.SSLError):
            pass
        self.writer.transport.abort()


async def blocked(identity: Identity, address: tuple[str, int]) -> ssl.SSLSocket:
    """Connect as this party with the smallest of buffers, and never read."""
    context = tls.client_context(identity)
    context.verify_mode = ssl.CERT_NONE

    def connect() -> ssl.SSLSocket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(address)
        return context.wrap_socket(plain)

    return await asyncio.to_thread(connect)
