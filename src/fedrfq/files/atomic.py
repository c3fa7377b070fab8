"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedrfq.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that becomes `path`, flushed to the disk, when the block ends well; else `path` stays as it was."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Either the old file or the whole new one, whatever happens in between."""
    with writing(path), replacing(path) as file:
        file.write(content)


@contextmanager
def writing(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write to {where}: {error.strerror or error}; free space or choose another --out"
        ) from error


def open_files(wanted: int) -> int:
    """How many files this process may have open, once it has asked for so many. Who has none left fails at whatever
    comes next."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted > soft != resource.RLIM_INFINITY:
        if hard == resource.RLIM_INFINITY:
            soft = wanted
        else:
            soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return soft
