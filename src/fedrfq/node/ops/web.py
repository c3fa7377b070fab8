"""A tiny web server for this machine alone: GET only, and one page for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from fedrfq.errors import UserError

HOST = "127.0.0.1"
# The names by which pages may be asked for. A website that makes its own name point to 127.0.0.1
# (DNS rebinding) could otherwise have a browser here read them.
_HOST_NAMES = (HOST, "localhost")
_MAX_REQUEST_BYTES = 8 << 10
_MAX_REQUEST_S = 5.0
_MAX_CONNECTIONS = 32
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class WebPage(NamedTuple):
    """A page, with its content type and HTTP status code."""

    text: str
    kind: str = "text/plain; charset=utf-8"
    code: int = 200


class WebServer:
    """Serves pages by path; each is made when it is asked for, from what follows the "?"."""

    def __init__(self, pages: Mapping[str, Callable[[str], WebPage]]) -> None:
        self._pages = pages
        # In the order in which they came.
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, option: str = "--status-port") -> int:
        """Start to listen and return the port; 0 lets the system choose one.

        `option` is what the user should change where that is not possible.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, HOST, port, limit=_MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise UserError(
                f"cannot listen on {HOST}:{port} ({error.strerror}): choose another {option}"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and cut all connections."""
        if self._server is not None:
            self._server.close()
        # The handlers remove themselves from the dict once their connections are gone.
        for writer in self._open:
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        # Of too many, the oldest has to go: a request takes no time, so that one is merely slow,
        # and slow ones must not keep anybody from asking for /healthz.
        if len(self._open) > _MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            await self._answer(reader, writer)
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; a connection that is slow, long or broken gets no answer."""
        with suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_MAX_REQUEST_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(self._page(request)))
                await writer.drain()

    def _page(self, request: bytes) -> WebPage:
        # latin-1 decodes any bytes, so hostile ones fail the checks below and not here.
        line, *headers = request.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return WebPage("this is not an HTTP/1 request\n", code=400)
        method, target, _ = words
        if not _is_for_this_machine(headers):
            names = " or ".join(_HOST_NAMES)
            return WebPage(f"the Host header must name this machine: {names}\n", code=403)
        path, _, query = target.partition("?")
        page = self._pages.get(path)
        if page is None:
            return WebPage(f"no such page; there are {', '.join(self._pages)}\n", code=404)
        if method != "GET":
            return WebPage("only GET is allowed\n", code=405)
        return page(query)


def _is_for_this_machine(headers: list[str]) -> bool:
    """Return whether there is exactly one Host header, and it names this machine."""
    hosts = []
    for line in headers:
        name, _, value = line.partition(":")
        if name.lower() == "host":
            hosts.append(value.strip())
    return len(hosts) == 1 and hosts[0].partition(":")[0] in _HOST_NAMES


def _response(page: WebPage) -> bytes:
    # Half a character in a hostile record must not keep the page from being served.
    body = page.text.encode(errors="replace")
    head = [
        f"HTTP/1.1 {page.code} {_REASONS[page.code]}",
        f"Content-Type: {page.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        # No other page, on whatever port of this machine, may show or load this one.
        "X-Frame-Options: DENY",
        "Cross-Origin-Resource-Policy: same-origin",
        "Connection: close",
    ]
    # HTTP requires a 405 to say what is allowed.
    if page.code == 405:
        head.append("Allow: GET")
    return "\r\n".join([*head, "", ""]).encode() + body
