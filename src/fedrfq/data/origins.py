"""Trying one place after another until one gives the right thing."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.progress import Progress

from fedrfq.data.cache import made_folder
from fedrfq.data.fetch import meter
from fedrfq.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Origin(Generic[T]):
    """Somewhere a thing may be had. `fetch` gets an empty work folder; it raises UserError or OSError if it cannot."""

    label: str
    fetch: Callable[[Path, Progress], T]


def first(
    places: Sequence[Origin[T]], check: Callable[[T], None], hint: str, show: bool
) -> tuple[T, str]:
    """What the first place gives that `check` lets pass, and that place's label.

    If none does, one UserError lists every place with its reason, then `hint`.
    """
    folder = made_folder()
    reasons = []
    for place in places:
        try:
            with (
                tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work,
                meter(show) as bar,
            ):
                thing = place.fetch(Path(work), bar)
            check(thing)
            return thing, place.label
        except (UserError, OSError) as error:
            _stop_if_full(error, folder)
            reasons.append(f"{place.label} ({error})")
    raise UserError(f"expected a place that has it, found none. Tried {'; '.join(reasons)}. {hint}")


def _stop_if_full(error: Exception, folder: Path) -> None:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"{folder}: expected room for the download, found a full disk; free some space"
        ) from error
