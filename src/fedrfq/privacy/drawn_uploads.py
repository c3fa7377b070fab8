"""Uploads with noise, each drawn once and kept: in a client's folder, or in a run's directory.

Two draws of one upload would tell more than one: their mean has less noise. So an upload is on the
disk before anybody sees it, and whoever asks again for the same round gets the same bytes, after a
crash too. What is on the disk is also what was spent: nothing else remembers it, so the two cannot
disagree. An upload that was drawn counts as spent, whether it was sent or not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.files.atomic import write_durably
from fedrfq.files.strict_json import from_json, to_json

FOLDER = "privacy"
_MAX_BYTES = 1 << 27


@dataclass(frozen=True)
class UploadKey:
    """Which upload it is: a run's id, a round and a client."""

    run: str
    round: int
    client: int

    @property
    def file(self) -> str:
        """The name of its file; a run's id is hexadecimal, or empty in a run's directory."""
        return f"{self.run or 'run'}-{self.round}-{self.client}.upload"


@dataclass(frozen=True)
class DrawnUpload:
    """An upload with noise in it, and how much that is."""

    content: bytes
    noise: float
    unit: str
    saturated: int


class DrawnUploads:
    """All uploads that were ever drawn in a folder; without a folder they are kept in memory.

    The folder is made for the first upload.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._drawn: dict[UploadKey, DrawnUpload] = {}
        self._look()

    def get(self, key: UploadKey) -> DrawnUpload | None:
        """Return an upload if it was drawn before."""
        if key not in self._drawn:
            self._look()
        return self._drawn.get(key)

    def once(self, key: UploadKey, draw: Callable[[], DrawnUpload]) -> DrawnUpload:
        """Return an upload, which is drawn if it never was. Then it is on the disk for good."""
        found = self.get(key)
        if found is not None:
            return found
        drawn = draw()
        # Before it is returned, and so before anybody can see it.
        if self.folder is not None:
            _write(self.folder, key, drawn)
        self._drawn[key] = drawn
        return drawn

    def of(self, client: int) -> list[DrawnUpload]:
        """Return what a client has drawn so far, in all runs."""
        self._look()
        # Of a copy: another thread may draw meanwhile.
        return [drawn for key, drawn in list(self._drawn.items()) if key.client == client]

    def _look(self) -> None:
        """Take up what is in the folder: another process may have drawn since."""
        if self.folder is None or not self.folder.is_dir():
            return
        known = {key.file for key in list(self._drawn)}
        for path in sorted(self.folder.glob("*.upload")):
            if path.name not in known:
                self._drawn.update([_read(path)])


def _write(folder: Path, key: UploadKey, drawn: DrawnUpload) -> None:
    facts = {name: value for name, value in vars(drawn).items() if name != "content"}
    sha256 = hashlib.sha256(drawn.content).hexdigest()
    header = to_json({**asdict(key), **facts, "sha256": sha256}).encode()
    write_durably(folder / key.file, header + b"\n" + drawn.content)


def _read(path: Path) -> tuple[UploadKey, DrawnUpload]:
    """Return the upload in a file; a file that was changed is an error, not a fresh draw."""
    try:
        header, _, content = regular.read_bytes(path, _MAX_BYTES).partition(b"\n")
        facts = from_json(header)
        key = UploadKey(str(facts["run"]), int(facts["round"]), int(facts["client"]))
        drawn = DrawnUpload(
            content, float(facts["noise"]), str(facts["unit"]), int(facts["saturated"])
        )
        intact = facts["sha256"] == hashlib.sha256(content).hexdigest()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path) from error
    if not intact or key.file != path.name or not drawn.noise > 0:
        raise _damaged(path)
    return key, drawn


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is not as this program wrote it, and drawing its noise again would reveal more"
        " than was agreed: restore the file"
    )
