"""Downloading one file over HTTP, bounded and checked against a known digest."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedrfq.errors import UserError

STALL_SECONDS = 5.0  # to connect, and between two pieces
_PIECE = 1 << 18


def meter(show: bool) -> Progress:
    """A progress bar in bytes on standard error, silent if not `show`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not show)


def download(url: str, path: Path, limit: int, digest: str, bar: Progress) -> None:
    """Write what is at `url` to `path`: at most `limit` bytes, and of the digest "md5:…" or "sha256:…"."""
    kind, _, expected = digest.partition(":")
    running = hashlib.new(kind, usedforsecurity=False)
    try:
        _stream(url, path, limit, running, bar)
    except (urllib.error.URLError, TimeoutError, http.client.HTTPException) as error:
        raise UserError(f"no answer: {getattr(error, 'reason', None) or error}") from error
    if running.hexdigest() != expected:
        raise UserError(f"{path.name}: expected {kind} {expected}, found {running.hexdigest()}")


def _stream(url: str, path: Path, limit: int, running: hashlib._Hash, bar: Progress) -> None:
    with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response, path.open("wb") as file:
        stated = response.headers.get("Content-Length", "")
        task = bar.add_task(path.name, total=int(stated) if stated.isdecimal() else None)
        size = 0
        while piece := response.read(_PIECE):
            size += len(piece)
            if size > limit:
                raise UserError(f"{path.name}: expected at most {limit} bytes, found more")
            running.update(piece)
            file.write(piece)
            bar.advance(task, len(piece))
