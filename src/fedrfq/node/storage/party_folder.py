"""The files of a party's folder: secrets only their owner may read, nothing overwritten, nothing read without a bound."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from fedrfq.errors import UserError

FEDERATION = "federation.toml"
VOTE_KEY = "vote.key"
TLS_KEY = "tls.key"
TLS_CERTIFICATE = "tls.crt"
REQUEST = "request.toml"
REQUESTS = "requests"
STATUS = "status.json"  # of a server that runs: where to ask it how it does
MOST_FEDERATION = 1 << 27  # bytes
_MOST_KEY = 1 << 12
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secret(path: Path) -> str:
    """What a private file holds, if only its owner may read it."""
    try:
        if path.stat().st_mode & _OTHERS:
            raise UserError(
                f"{path} can be read by others: `chmod 600 {path}`; if anyone may have read it, make new keys"
            )
    except OSError as error:
        raise _unreadable(path, error) from error
    return read_text(path, _MOST_KEY)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """A new file, flushed to the disk; one that exists is never touched."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def refuse_existing(paths: Iterable[Path]) -> None:
    """Before the first of several is written."""
    for path in paths:
        if path.exists():
            raise _exists(path)


def make_folder(folder: Path, mode: int = 0o755) -> None:
    """The folder, if it is not there."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from error


def read_text(path: Path, most: int) -> str:
    """Byte for byte, of a plain file: a pipe would be waited for in vain, and a device read without end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path} is not a file: restore it")
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise UserError(f"{path} is longer than any that this program writes: restore it")
        return content.decode()
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: restore it") from error


def _exists(path: Path) -> UserError:
    return UserError(f"{path} exists, and nothing is overwritten: choose another folder")


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be read ({error.strerror}): is this the folder of a party?")
