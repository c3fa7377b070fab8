"""A few pages over HTTP, for this machine alone: GET, one page a connection, small and quick or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from fedrfq.errors import UserError

HOST = "127.0.0.1"
_NAMES = (
    HOST,
    "localhost",
)  # by which it may be asked for: a web page that has its own name point here may not read it
_MOST_BYTES = 8 << 10
_MOST_S = 5.0
_MOST_AT_ONCE = 32
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class WebPage(NamedTuple):
    text: str
    kind: str = "text/plain; charset=utf-8"
    code: int = 200


class WebServer:
    """`pages` are made when they are asked for, by path."""

    def __init__(self, pages: Mapping[str, Callable[[], WebPage]]) -> None:
        self._pages = pages
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        """The port it listens on; 0 lets the system choose one."""
        try:
            self._server = await asyncio.start_server(self._serve, HOST, port, limit=_MOST_BYTES)
        except OSError as error:
            raise UserError(
                f"cannot listen on {HOST}:{port} ({error.strerror}): choose another --status-port"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if len(self._open) <= _MOST_AT_ONCE:
                with suppress(
                    OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
                ):
                    async with asyncio.timeout(_MOST_S):
                        writer.write(_response(self._page(await reader.readuntil(b"\r\n\r\n"))))
                        await writer.drain()
        finally:
            self._open.discard(writer)
            writer.close()

    def _page(self, request: bytes) -> WebPage:
        line, *headers = request.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return WebPage("not a request\n", code=400)
        if not _asks_for_this_machine(headers):
            return WebPage("the Host must be this machine\n", code=403)
        page = self._pages.get(words[1].partition("?")[0])
        if page is None:
            return WebPage(f"there are {', '.join(self._pages)}\n", code=404)
        if words[0] == "GET":
            return page()
        return WebPage("GET alone\n", code=405)


def _asks_for_this_machine(headers: list[str]) -> bool:
    hosts = [
        value.strip()
        for name, _, value in (line.partition(":") for line in headers)
        if name.lower() == "host"
    ]
    return len(hosts) == 1 and hosts[0].partition(":")[0] in _NAMES


def _response(page: WebPage) -> bytes:
    body = page.text.encode()
    head = [
        f"HTTP/1.1 {page.code} {_REASONS[page.code]}",
        f"Content-Type: {page.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET"] if page.code == 405 else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
