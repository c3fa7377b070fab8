"""A real Chromium without a window, driven by its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PATIENCE_S = 60.0


class Browser:
    """One page of a browser.

    `errors` has exceptions, console errors and refused requests; `asked` every address requested.
    """

    def __init__(self, to: int, from_: int) -> None:
        self.to = to
        self.from_ = from_
        self.rest = b""
        self.number = 0
        self.session = ""
        self.errors: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            more = os.read(self.from_, 1 << 20)
            assert more, "Chromium is gone"
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        kind = event.get("method")
        params = event.get("params", {})
        bad = ("error", "warning")
        if kind == "Runtime.exceptionThrown" or (
            kind == "Runtime.consoleAPICalled" and params["type"] in bad
        ):
            self.errors.append(json.dumps(params)[:500])
        elif kind == "Log.entryAdded" and params["entry"]["level"] in bad:
            self.errors.append(json.dumps(params["entry"])[:500])
        elif kind == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"][:200])

    def open(
        self, page: Path | str, width: int = 1200, dark: bool = False, media: str = ""
    ) -> None:
        """Open the file or address, and wait until it is drawn."""
        self.look(width, dark, media)
        if isinstance(page, Path):
            page = page.resolve().as_uri()
        self.call("Page.navigate", url=page)
        deadline = time.monotonic() + PATIENCE_S
        while not self.js("document.readyState === 'complete' && 'drawn' in window"):
            assert time.monotonic() < deadline, "the page was not loaded"
            time.sleep(0.02)
        self.js("window.drawn.then(() => 1)")

    def look(self, width: int = 1200, dark: bool = False, media: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def js(self, expression: str) -> Any:
        """Return the expression's value, once it has one."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Return the expression's value, once it is true of the page."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.js(expression)):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)
        return value

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(
                kind, x, y, **({} if kind == "mouseMoved" else {"button": "left", "clickCount": 1})
            )

    def picture(self) -> bytes:
        """Return a picture of the whole page."""
        return base64.b64decode(
            self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        )

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    assert CHROMIUM is not None
    (read, to) = os.pipe()
    (from_, write) = os.pipe()
    options = (
        "--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe "
        "--no-first-run --disable-dev-shm-usage"
    )
    command = f'exec "$0" {options} "--user-data-dir=$1" about:blank 3<&{read} 4>&{write}'
    process = subprocess.Popen(
        ["bash", "-c", command, CHROMIUM, str(profile)],
        pass_fds=(read, write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read)
    os.close(write)
    try:
        yield Browser(to, from_)
    finally:
        with suppress(BrokenPipeError):
            os.write(to, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to)
        os.close(from_)
