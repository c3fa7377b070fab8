"""The web pages of a running party: its status, its metrics, and whether it is well."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.node.ops.client_status import ClientStatus
from fedrfq.node.ops.status import ServerStatus
from fedrfq.node.ops.web import WebPage, WebServer
from fedrfq.node.storage.party_folder import STATUS


class StatusPages:
    """Serves /status, /metrics and /healthz, and names the port in the party's folder.

    `failed` returns why the party can no longer write, or None as long as it is well.
    """

    def __init__(
        self,
        folder: Path,
        status: Callable[[], ServerStatus | ClientStatus],
        metrics: Callable[[], str],
        failed: Callable[[], str | None],
    ) -> None:
        self._file = folder / STATUS
        self._status = status
        self._metrics = metrics
        self._failed = failed
        self._web = WebServer(
            {
                "/status": self._status_page,
                "/metrics": self._metrics_page,
                "/healthz": self._health_page,
            }
        )

    async def start(self, port: int = 0) -> int:
        """Serve on a loopback port, and return it; 0 lets the system choose one."""
        chosen = await self._web.start(port)
        write_atomically(self._file, json.dumps({"port": chosen, "pid": os.getpid()}).encode())
        return chosen

    async def stop(self) -> None:
        """Serve no more."""
        await self._web.stop()
        self._file.unlink(missing_ok=True)

    def _status_page(self, query: str) -> WebPage:
        return WebPage(to_json(asdict(self._status())) + "\n", "application/json")

    def _metrics_page(self, query: str) -> WebPage:
        return WebPage(self._metrics(), "text/plain; version=0.0.4; charset=utf-8")

    def _health_page(self, query: str) -> WebPage:
        failed = self._failed()
        if failed is None:
            return WebPage("ok\n")
        return WebPage(f"{failed}\n", code=503)
