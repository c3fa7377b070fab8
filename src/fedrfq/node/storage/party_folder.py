"""The files of a party's folder.

Only their owner may read the secret ones, nothing is overwritten, and every read is bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation import federation_file
from fedrfq.files import regular

FEDERATION = "federation.toml"
VOTE_KEY = "vote.key"
TLS_KEY = "tls.key"
TLS_CERTIFICATE = "tls.crt"
REQUEST = "request.toml"
REQUESTS = "requests"
# Written by a running server or client: the port where it can be asked for its status.
STATUS = "status.json"
MAX_FEDERATION_BYTES = federation_file.MAX_BYTES
# A key takes a few hundred bytes.
_MAX_KEY_BYTES = 1 << 12
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secret(path: Path, max_bytes: int = _MAX_KEY_BYTES) -> str:
    """Return the content of a private file; refuse it if anyone but its owner has access."""
    try:
        if path.stat().st_mode & _OTHERS:
            raise UserError(
                f"{path} can be read by others: run `chmod 600 {path}`,"
                " and make new keys if anyone may have read it"
            )
    except OSError as error:
        raise _unreadable(path, error) from error
    return read_text(path, max_bytes)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file and wait until it is on the disk; refuse to touch one that exists."""
    # Created with its final mode: a secret is not readable for others even for a moment.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # Half a file would be in the way of the next try.
            path.unlink()
            raise
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise UserError if any of these files exists; call it before writing the first of them."""
    for path in paths:
        if path.exists():
            raise _exists(path)


def make_folder(folder: Path, mode: int = 0o755) -> None:
    """Create the folder and its parents unless they are there."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from error


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a regular file that is at most so long."""
    try:
        # Through links: where keys are mounted as secrets, they are links.
        return regular.read_text(path, max_bytes, links=True)
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: restore it") from error


def _exists(path: Path) -> UserError:
    return UserError(f"{path} exists and will not be overwritten: choose another folder")


def _unreadable(path: Path, error: OSError) -> UserError:
    remedy = "restore it"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        remedy = "is this a party's folder?"
    return UserError(f"{path} cannot be read ({error.strerror}): {remedy}")
