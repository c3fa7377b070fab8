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
from urllib.parse import parse_qs

from fedrfq.errors import UserError
from fedrfq.node.ops.web import HOST, WebPage, WebServer
from fedrfq.report import live_page, vega
from fedrfq.report.live_federation import LiveFederation
from fedrfq.report.live_runs import LiveRuns, key, waiting
from fedrfq.report.page import ReportPage
from fedrfq.runs.find_runs import newest_first, runs_in

# How often the files are looked at, while somebody is looking at the page.
_EVERY_S = 1.0
# A page that was asked for within this time is being looked at, if it is among the latest.
_LOOKED_AT_S = 10.0
_MAX_PAGES = 16
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"


def watched(paths: Sequence[Path]) -> Callable[[str], ReportPage]:
    """Return a function that makes the page of what is there now, or of one run by its key."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist: name a run, a folder of runs, or a federation")
    federations = [path for path in paths if _is_federation(path)]
    if federations and len(paths) > 1:
        raise UserError(f"{federations[0]} is a federation: watch it alone")
    if federations:
        live_federation = LiveFederation(federations[0])
        return lambda run: live_federation.page()
    live = LiveRuns()
    return lambda run: _runs(live, paths, run)


def _is_federation(path: Path) -> bool:
    """Return whether this is the folder of a federation; a run with a committee is none."""
    return (path / "federation.toml").is_file() and not (path / "experiment.toml").is_file()


def _runs(live: LiveRuns, paths: Sequence[Path], run: str) -> ReportPage:
    # Searched again each time: a grid begins one run after the other.
    try:
        found = newest_first(runs_in(paths))
    except UserError as error:
        return waiting(str(error))
    if not run and len(found) > 1:
        return live.several(found)
    for path in found:
        if run in ("", key(path)):
            return live.one(path, len(found) > 1)
    return waiting("There is no such run here.")


class Watch:
    """The pages of a watch: one for the browser, and the state that it asks for every second.

    There is a state for all that is watched, and one for each run whose page is being looked at.
    """

    def __init__(self, make: Callable[[str], ReportPage]) -> None:
        self._make = make
        # By the run's key, or "" for all: when the state was asked for, and what it was.
        self._asked = {"": time.monotonic()}
        self._states: dict[str, str] = {}
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
                await asyncio.to_thread(self._look)
        finally:
            await server.stop()
            self.ended.set()

    async def last_look(self) -> None:
        """Look once more, and give a page that is open the time to ask for what has come of it."""
        await asyncio.to_thread(self._look)
        looked = time.monotonic()
        until = looked
        if looked - self._last_asked() < 3 * _EVERY_S:
            until += 2 * _EVERY_S
        while self._last_asked() < looked and time.monotonic() < until:
            await asyncio.sleep(_EVERY_S / 20)

    def _last_asked(self) -> float:
        return max(self._asked.values())

    def _look(self) -> None:
        """Make the states anew that are looked at; the others need not be remembered."""
        now = time.monotonic()
        # A copy: pages are asked for meanwhile.
        asked = dict(self._asked)
        for place, run in enumerate(sorted(asked, key=lambda run: -asked[run])):
            if place < _MAX_PAGES and now - asked[run] < _LOOKED_AT_S:
                self._states[run] = self._state(run)
            elif run:
                self._asked.pop(run, None)
                self._states.pop(run, None)

    def _state(self, run: str) -> str:
        """Return the state of a page. Whatever lies in the files, the server goes on."""
        try:
            page = self._make(run)
        except UserError as error:
            page = waiting(str(error))
        except Exception as error:
            # A file may be damaged in a way that nobody thought of; it may be whole a second later.
            page = waiting(f"What is there cannot be shown ({error!r:.200}).")
        return live_page.state(page)

    def _page(self, query: str) -> WebPage:
        self._note(query)
        return WebPage(self._shell, _HTML)

    def _newest(self, query: str) -> WebPage:
        run = self._note(query)
        state = self._states.get(run) or live_page.state(waiting("The run is being read."))
        return WebPage(state, _JSON)

    def _note(self, query: str) -> str:
        """Note that a page is being looked at, and return the key of its run."""
        run = parse_qs(query).get("run", [""])[0]
        self._asked[run] = time.monotonic()
        return run


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
