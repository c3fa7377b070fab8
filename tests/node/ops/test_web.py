"""The pages on a server's loopback port: who is served, and what metrics say."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.node.ops import prometheus_text
from fedrfq.node.ops.web import WebPage, WebServer
from support.federations import PATIENCE_S, Servers, fetched, founded, until, uploaded


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_S))


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def get(path: str = "/page", host: str = "127.0.0.1", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (get(), 200),
        (get("/page?x=1"), 200),
        (get(host="localhost:80"), 200),
        (get("/sick"), 503),
        (get("/"), 404),
        (get("/../page"), 404),
        (get(method="POST"), 405),
        (get(host="evil.example"), 403),
        (get(host="127.0.0.1.evil.example"), 403),
        (b"GET /page HTTP/1.1\r\n\r\n", 403),
        (b"GET /page HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
        (b"\xff\xfe \x00 \r\n\r\n", 400),
        (b"GET /page HTTP/9\r\nHost: localhost\r\n\r\n", 400),
    ],
)
def test_pages_are_for_this_machine_and_only_to_be_read(request_: bytes, code: int) -> None:
    async def test() -> None:
        web = WebServer(
            {
                "/page": lambda query: WebPage("found"),
                "/sick": lambda query: WebPage("not well", code=503),
            }
        )
        answer = await asked(await web.start(), request_)
        assert answer.startswith(b"HTTP/1.1 %d " % code)
        assert answer.endswith(b"\r\n\r\nfound") == (code == 200)
        await web.stop()

    run(test())


def test_half_a_character_does_not_keep_a_page_from_being_served() -> None:
    async def test() -> None:
        web = WebServer({"/page": lambda query: WebPage("half \ud83d of one")})
        answer = await asked(await web.start(), get())
        assert answer.endswith(b"\r\n\r\nhalf ? of one")
        await web.stop()

    run(test())


def test_a_request_is_small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.node.ops.web._MAX_REQUEST_S", 0.05)

    async def test() -> None:
        web = WebServer({"/page": lambda query: WebPage("found")})
        port = await web.start()
        assert await asked(port, b"GET /page HTTP/1.1\r\nX: " + bytes(1 << 20)) == b""
        assert await asked(port, b"GET /pa") == b""
        assert (await asked(port, get())).endswith(b"found")
        await web.stop()

    run(test())


def test_slow_connections_keep_nobody_from_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 that are open at a server's status port, the oldest give way."""
    monkeypatch.setattr("fedrfq.node.ops.web._MAX_REQUEST_S", 1000.0)
    founded(tmp_path, rounds=5)
    folder = tmp_path / "server-0"

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0)
        port = json.loads((folder / "status.json").read_text())["port"]
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in slow:
            writer.write(b"GET /healthz HT")
        assert await fetched(folder, "/healthz") == (200, "ok\n")
        with suppress(ConnectionResetError):
            assert await slow[0][0].read() == b""
        await servers.stop(0)

    run(test())


def test_a_port_that_is_taken_is_said() -> None:
    async def test() -> None:
        one = WebServer({})
        other = WebServer({})
        with pytest.raises(UserError, match="--status-port"):
            await other.start(await one.start())
        await one.stop()

    run(test())


METRIC = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\]|\\.)*"\})? [0-9.e+-]+|# (HELP|TYPE) [a-z_]+ .+')


def test_metrics_are_in_prometheus_form(tmp_path: Path) -> None:
    federation = founded(tmp_path, rounds=5)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, federation, 3)
        await until(lambda: servers[0]._tracker.decided == 3)
        code, text = await fetched(tmp_path / "server-0", "/metrics")
        assert code == 200
        assert all(METRIC.fullmatch(line) for line in text.splitlines())
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert lines["fedrfq_round"] == "4"
        assert lines["fedrfq_commits_total"] == "3" == lines["fedrfq_round_seconds_count"]
        assert lines["fedrfq_servers_connected"] == "3"
        assert float(lines["fedrfq_flush_seconds_total"]) > 0
        assert all(
            int(lines[f"fedrfq_{key}_total"]) > 0
            for key in ("frames_in", "frames_out", "bytes_in", "bytes_out")
        )
        await servers.stop()

    run(test())


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = prometheus_text.Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(seconds)
    assert histogram.lines("t", "times")[2:] == [
        't_bucket{le="1.0"} 2',
        't_bucket{le="2.0"} 3',
        't_bucket{le="+Inf"} 4',
        "t_sum 12.0",
        "t_count 4",
    ]


def test_labels_are_escaped() -> None:
    assert prometheus_text.counters("c", "about", "why", {'a"\n\\': 1})[2:] == [
        'c{why="a\\"\\n\\\\"} 1'
    ]
