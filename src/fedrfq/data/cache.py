"""The folder where datasets and weights are kept, and atomic writes to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedrfq.errors import UserError
from fedrfq.files import atomic


def folder() -> Path:
    """Return the cache folder, which may not exist yet.

    It is FEDRFQ_DATA if that is set, else `fedrfq` in the platform's cache folder.
    """
    # Read at each call, so that tests and notebooks can change it.
    chosen = os.environ.get("FEDRFQ_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return _platform_cache() / "fedrfq"


def _platform_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def ensure_folder() -> Path:
    """Return the cache folder, creating it if necessary."""
    path = folder()
    with reporting_disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def tell_cached(name: str, path: Path, show: bool) -> None:
    """Say on standard error, if `show`, that nothing had to be fetched."""
    # Late, because servers read data contracts and need none of this.
    from rich.console import Console

    console = Console(stderr=True, quiet=not show, markup=False, highlight=False)
    console.print(f"{name} is already in the cache and valid: {path}", soft_wrap=True)


@contextmanager
def reporting_disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk (full, read-only, not allowed) into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write to {path}: {error.strerror or error}; "
            "free some space or set FEDRFQ_DATA to a folder you can write to"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` on success, as `files.atomic.replacing` does."""
    with reporting_disk_errors(path), atomic.replacing(path) as file:
        yield file
