"""failed.json: why a run failed, so that a list of runs can say so."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files.atomic import write_atomically
from fedrfq.files.regular import read_text

_NAME = "failed.json"
# Letters that are written; a letter takes up to twelve bytes.
_MAX_LETTERS = 1000
_MAX_BYTES = 1 << 14
# Letters of an error that are shown.
_MAX_SHOWN = 160


def note(run: Path, error: Exception) -> None:
    """Write why a run failed, if its disk still takes it."""
    text = str(error)
    if not isinstance(error, UserError):
        text = f"{type(error).__name__}: {error}"
    with suppress(UserError):
        write_atomically(run / _NAME, json.dumps({"error": text[:_MAX_LETTERS]}).encode())


def forget(run: Path) -> None:
    """Remove what was written, as the run goes on."""
    (run / _NAME).unlink(missing_ok=True)


def reason(run: Path) -> str | None:
    """Return why a run failed, in printable form; None if it did not."""
    try:
        error = json.loads(read_text(run / _NAME, _MAX_BYTES))["error"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        error = f"{_NAME} cannot be read"
    return "".join(letter if letter.isprintable() else " " for letter in str(error)[:_MAX_SHOWN])
