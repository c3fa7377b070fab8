"""Fetching a package with the registries' own clients, `npm pack` and `pip download`; nothing of it is run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.progress import Progress

from fedrfq.errors import UserError

PATIENCE_SECONDS = 900


def npm_pack(package: str, folder: Path, limit: int, bar: Progress) -> Path:
    """The .tgz of `package` ("name@version"), at most `limit` bytes, left in the empty `folder`."""
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("client `npm` not found")
    options = [
        "--ignore-scripts",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
    ]
    _run([npm, "pack", package, *options], folder, package, bar)
    return _only(folder, ".tgz", limit)


def pip_download(package: str, folder: Path, limit: int, bar: Progress) -> Path:
    """The wheel of `package` ("name==version"), at most `limit` bytes, left in the empty `folder`.

    Wheels only: to fetch a source archive, pip would run its setup.py.
    """
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--retries=1",
    ]
    _run([*_pip(), "download", package, *options], folder, package, bar)
    return _only(folder, ".whl", limit)


def _pip() -> list[str]:
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    pip = shutil.which("pip")
    if pip is None:
        raise UserError("client `pip` not found")
    return [pip]


def _run(command: list[str], folder: Path, package: str, bar: Progress) -> None:
    task = bar.add_task(package, total=None)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"no end after {PATIENCE_SECONDS} s") from error
    finally:
        bar.remove_task(task)
    if done.returncode:
        raise UserError(
            _complaint(done.stderr.decode(errors="replace")) or f"exit code {done.returncode}"
        )


def _complaint(text: str) -> str:
    """The line of a client's complaints that says most, short and printable."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error:", "npm err"))] or lines[
        -1:
    ]
    return "".join(letter for letter in " / ".join(telling[:2])[:200] if letter.isprintable())


def _only(folder: Path, suffix: str, limit: int) -> Path:
    found = [path for path in folder.iterdir() if path.suffix == suffix]
    if len(found) != 1:
        raise UserError(f"expected one {suffix} file from the client, found {len(found)}")
    if found[0].stat().st_size > limit:
        raise UserError(
            f"{found[0].name}: expected at most {limit} bytes, found {found[0].stat().st_size}"
        )
    return found[0]
