"""The rounds in which clients trained with noise: what was spent on training, kept on the disk.

A round is written down before it is trained. If a run dies and trains it again, it is there twice:
noise was drawn twice, and both draws count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.files.atomic import write_durably
from fedrfq.files.strict_json import from_json, to_json

FILE = "training.json"
_MAX_BYTES = 1 << 27


class TrainedRounds:
    """Who began to train, as often as it did; without a folder it is kept in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._begun: list[list[int]] = []
        if folder is not None and (folder / FILE).exists():
            self._begun = _read(folder / FILE)

    def begin(self, clients: Sequence[int]) -> None:
        """Write down that these clients train for a round, before they do."""
        self._begun.append(list(clients))
        if self.folder is None:
            return
        write_durably(self.folder / FILE, to_json(self._begun).encode())

    def of(self, client: int) -> int:
        """Return how many rounds a client began to train."""
        return sum(client in clients for clients in self._begun)


def _read(path: Path) -> list[list[int]]:
    try:
        begun = from_json(regular.read_text(path, _MAX_BYTES))
        is_known = isinstance(begun, list) and all(
            isinstance(row, list) and all(type(client) is int for client in row) for row in begun
        )
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if not is_known:
        raise _damaged(path)
    found: list[list[int]] = begun
    return found


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is not as this program wrote it, and without it nobody knows what training has"
        " cost: restore the file"
    )
