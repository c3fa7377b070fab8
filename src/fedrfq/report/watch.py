"""Serves one page that follows runs, or a federation, as they go: on this machine, read only."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.node.ops.web import HOST, WebPage, WebServer
from fedrfq.report import live_page, vega
from fedrfq.report.live_federation import LiveFederation
from fedrfq.report.live_runs import LiveRuns, waiting
from fedrfq.report.page import ReportPage
from fedrfq.runs.find_runs import newest_first, runs_in

# How often the files are looked at, while somebody is looking at the page.
_EVERY_S = 1.0
# A page that was asked for within this time is being looked at.
_LOOKED_AT_S = 10.0
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"


def watched(paths: Sequence[Path]) -> Callable[[], ReportPage]:
    """Return a function that makes the page of what is there now."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist: name a run, a folder of runs, or a federation")
    federations = [path for path in paths if _is_federation(path)]
    if federations and len(paths) > 1:
        raise UserError(f"{federations[0]} is a federation: watch it alone")
    if federations:
        return LiveFederation(federations[0]).page
    live = LiveRuns()
    return lambda: _runs(live, paths)


def _is_federation(path: Path) -> bool:
    """Return whether this is the folder of a federation; a run with a committee is none."""
    return (path / "federation.toml").is_file() and not (path / "experiment.toml").is_file()


def _runs(live: LiveRuns, paths: Sequence[Path]) -> ReportPage:
    # Searched again each time: a grid begins one run after the other.
    try:
        found = newest_first(runs_in(paths))
    except UserError as error:
        return waiting(str(error))
    if len(found) == 1:
        return live.one(found[0])
    return live.several(found)


class Watch:
    """The pages of a watch: one for the browser, and the state that it asks for every second."""

    def __init__(self, make: Callable[[], ReportPage]) -> None:
        self._make = make
        self._asked = time.monotonic()
        self._state = ""
        self._shell = ""
        self.ended = asyncio.Event()

    async def serve(self, port: int, started: Callable[[str], None]) -> None:
        """Serve until cancelled; call `started` with the page's address once it can be asked."""
        server = WebServer({"/": self._page, "/state": self._newest})
        try:
            self._shell = await asyncio.to_thread(_shell)
            await asyncio.to_thread(self._look)
            number = await server.start(port, "--port")
            started(f"http://{HOST}:{number}/")
            while True:
                await asyncio.sleep(_EVERY_S)
                if time.monotonic() - self._asked < _LOOKED_AT_S:
                    await asyncio.to_thread(self._look)
        finally:
            await server.stop()
            self.ended.set()

    async def last_look(self) -> None:
        """Look once more, and give a page that is open the time to ask for what has come of it."""
        await asyncio.to_thread(self._look)
        looked = time.monotonic()
        until = looked
        if looked - self._asked < 3 * _EVERY_S:
            until += 2 * _EVERY_S
        while self._asked < looked and time.monotonic() < until:
            await asyncio.sleep(_EVERY_S / 20)

    def _look(self) -> None:
        """Make the state anew. Whatever lies in the files, the server goes on."""
        try:
            page = self._make()
        except UserError as error:
            page = waiting(str(error))
        except Exception as error:
            # A file may be damaged in a way that nobody thought of; it may be whole a second later.
            page = waiting(f"What is there cannot be shown ({error!r:.200}).")
        self._state = live_page.state(page)

    def _page(self) -> WebPage:
        self._asked = time.monotonic()
        return WebPage(self._shell, _HTML)

    def _newest(self) -> WebPage:
        self._asked = time.monotonic()
        return WebPage(self._state, _JSON)


@cache
def _shell() -> str:
    # In a process of its own: the builder would keep its memory.
    with vega.programming() as program:
        return live_page.shell(program())


@contextmanager
def watching(paths: Sequence[Path]) -> Iterator[str]:
    """Serve the page in a thread of this process while the block runs; yield its address."""
    vega.check()
    watch = Watch(watched(paths))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="watch", daemon=True)
    thread.start()
    address: Future[str] = Future()
    serving = asyncio.run_coroutine_threadsafe(watch.serve(0, address.set_result), loop)
    try:
        either: list[Future[Any]] = [address, serving]
        wait(either, return_when=FIRST_COMPLETED)
        if not address.done():
            serving.result()
        yield address.result()
        asyncio.run_coroutine_threadsafe(watch.last_look(), loop).result()
    finally:
        serving.cancel()
        asyncio.run_coroutine_threadsafe(watch.ended.wait(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
