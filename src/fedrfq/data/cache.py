"""Where datasets and weights are kept, and how a file gets there whole or not at all."""

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
    """The cache folder: FEDRFQ_DATA if set, else the platform's cache folder /fedrfq. It may not exist yet."""
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


def made_folder() -> Path:
    """The cache folder, made if need be."""
    path = folder()
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk may refuse (full, read-only, not allowed) into one line for the user."""
    try:
        yield
    except OSError as error:
        hint = "free some space or set FEDRFQ_DATA to a folder you can write to"
        raise UserError(
            f"{path}: expected to write there, found: {error.strerror or error}; {hint}"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """As `files.replacing`, with one line for the user where the disk refuses."""
    with disk_errors(path), atomic.replacing(path) as file:
        yield file
