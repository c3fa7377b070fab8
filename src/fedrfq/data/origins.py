"""Try one place after another until one has the right thing."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from fedrfq.data.cache import ensure_folder
from fedrfq.data.fetch import meter
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


@dataclass(frozen=True)
class Origin(Generic[T]):
    """A place that a dataset or weights can be fetched from.

    `fetch` gets an empty work folder; it raises UserError or OSError if it fails.
    """

    label: str
    fetch: Callable[[Path, Progress], T]


def first(
    places: Sequence[Origin[T]], check: Callable[[T], None], hint: str, show: bool
) -> tuple[T, str]:
    """Return what the first place gives that passes `check`, and that place's label.

    If none does, one UserError lists every place with its reason, then `hint`.
    """
    folder = ensure_folder()
    reasons = []
    for place in places:
        try:
            with (
                # In the cache folder, where there is room for a dataset; /tmp may be small.
                tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work,
                meter(show) as bar,
            ):
                fetched = place.fetch(Path(work), bar)
            check(fetched)
            return fetched, place.label
        except (UserError, OSError) as error:
            _stop_if_full(error, folder)
            reasons.append(f"{place.label} ({error})")
    raise UserError(f"could not be fetched from anywhere. Tried {'; '.join(reasons)}. {hint}")


def _stop_if_full(error: Exception, folder: Path) -> None:
    """Give up if the disk is full: no other place would help."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"{folder}: expected room for the download, found a full disk; free some space"
        ) from error
