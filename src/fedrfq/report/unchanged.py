"""Reads a folder again only if its files have changed since: a page is made every second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Unchanged(Generic[T]):
    """Remembers what `read` returned for a folder as long as the files of these names stay."""

    def __init__(self, read: Callable[[Path], T], names: Sequence[str]) -> None:
        self._read = read
        self._names = names
        self._known: dict[Path, tuple[list[tuple[int, int] | None], T]] = {}

    def __call__(self, folder: Path) -> T:
        """Return what was read of the folder, now or before."""
        stamp = [_stamp(folder / name) for name in self._names]
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = (stamp, self._read(folder))
            self._known[folder] = known
        return known[1]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
