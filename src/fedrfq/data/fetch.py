"""Download one file over HTTP, bounded in size and checked against a known digest."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

# How long a server may take to accept the connection, and to send the next bytes.
STALL_SECONDS = 5.0
_CHUNK_BYTES = 1 << 18


def meter(show: bool) -> Progress:
    """Return a progress bar in bytes on standard error, silent if not `show`."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not show)


def download(url: str, path: Path, limit: int, digest: str, bar: Progress) -> None:
    """Write what is at `url` to `path`; refuse more than `limit` bytes or another digest.

    `digest` is "md5:…" or "sha256:…".
    """
    kind, _, expected = digest.partition(":")
    hasher = hashlib.new(kind, usedforsecurity=False)
    try:
        _stream(url, path, limit, hasher, bar)
    except (urllib.error.URLError, TimeoutError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"no answer: {reason}") from error
    if hasher.hexdigest() != expected:
        raise UserError(f"{path.name}: expected {kind} {expected}, found {hasher.hexdigest()}")


def _stream(url: str, path: Path, limit: int, hasher: hashlib._Hash, bar: Progress) -> None:
    with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response, path.open("wb") as file:
        stated = response.headers.get("Content-Length", "")
        total = int(stated) if stated.isdecimal() else None
        task = bar.add_task(path.name, total=total)
        size = 0
        while chunk := response.read(_CHUNK_BYTES):
            size += len(chunk)
            # Checked as it arrives: the stated length may be missing or a lie.
            if size > limit:
                raise UserError(f"{path.name}: expected at most {limit} bytes, found more")
            hasher.update(chunk)
            file.write(chunk)
            bar.advance(task, len(chunk))
