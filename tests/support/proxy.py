"""A TCP proxy that delays, drops, splits and cuts what passes, or holds it back for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

# How often a piece that is held back checks whether it may pass.
_POLL_S = 0.01


@dataclass(frozen=True)
class Weather:
    """What happens to each piece that passes, in either direction."""

    delay_s: tuple[float, float] = (0.0, 0.0)  # between these; the order is kept
    piece: int = 1 << 16  # bytes that go together at most
    drop: float = 0.0  # the share of pieces that are lost: what is encrypted then breaks
    cut: float = 0.0  # the share of pieces after which the connection is reset


CALM = Weather()


class Proxy:
    """A proxy between clients that connect to `port` and the server that listens on `target`.

    `weather` may be changed at any time. `who` names a connection by the port it comes from, once.
    While `apart(name)`, nothing passes in either direction and nothing is lost, as with TCP over a
    network that is down.
    """

    def __init__(
        self,
        target: int,
        rng: Random,
        weather: Weather = CALM,
        who: Callable[[int], int | None] = lambda port: None,
        apart: Callable[[int | None], bool] = lambda name: False,
        host: str = "127.0.0.1",
        target_host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.target_host = target_host
        self.target = target
        self.rng = rng
        self.weather = weather
        self.who = who
        self.apart = apart
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        """Listen on the port, or on a free one."""
        self._server = await asyncio.start_server(self._accept, self.host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all connections."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # cut, by us or by either end
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = self.who(writer.get_extra_info("peername")[1])
        while self.apart(name):
            await asyncio.sleep(_POLL_S)
        theirs, ours = await asyncio.open_connection(self.target_host, self.target)
        ways = [
            asyncio.ensure_future(self._pump(name, reader, ours)),
            asyncio.ensure_future(self._pump(name, theirs, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            with contextlib.suppress(OSError):
                ours.close()

    async def _pump(
        self, name: int | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on one direction, until its end or a cut."""
        while data := await reader.read(self.weather.piece):
            weather = self.weather
            if any(weather.delay_s):
                await asyncio.sleep(self.rng.uniform(*weather.delay_s))
            while self.apart(name):
                await asyncio.sleep(_POLL_S)
            if self.rng.random() >= weather.drop:
                writer.write(data)
                await writer.drain()
            if self.rng.random() < weather.cut:
                return
