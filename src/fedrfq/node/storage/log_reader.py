"""Reading the durable log: which of its files count, whether they hold, and what is in them. Nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedrfq.consensus.messages import Message
from fedrfq.errors import UserError
from fedrfq.node.storage import segments
from fedrfq.node.storage.segments import HEADER, BadSegment, Header, SegmentContents

FOLDER = "log"


class DamagedLog(UserError):
    """The log is not what was written: what this party has said is no longer known, and it must not go on as if it were."""

    def __init__(self, path: Path, offset: int, why: str) -> None:
        party = path.parent.parent
        super().__init__(
            f"{path}, byte {offset}: {why}; put no copy in its place, but set it aside: `fedrfq server {party} --rejoin`"
        )
        self.path = path
        self.offset = offset


class LogContents(NamedTuple):
    """What a log holds. `files` are those that count, in order; `other` are left over from what a crash cut short. The last
    file is `size` bytes long, and whole up to `end`."""

    messages: list[Message]
    files: list[Path]
    other: list[Path]
    header: Header | None
    check: int
    end: int
    size: int


def name(number: int) -> str:
    return f"{number:08d}.log"


def load(folder: Path, run: bytes) -> LogContents:
    """The log in a folder; Damaged where it does not hold. The tail of a flush that never ended is left out."""
    files = sorted(folder.glob("[0-9]" * 8 + ".log"))
    if files and _unborn(files):
        torn = files[-1:]
    else:
        torn = []
    files = files[: len(files) - len(torn)]
    if not files:
        return LogContents([], [], torn, None, 0, 0, 0)
    first = _header(files[-1], run).first
    counting = [path for path in files if int(path.stem) >= first]
    messages = []
    before = None
    last = None
    for number, path in enumerate(counting, start=first):
        head, found = _read(path, run, number, before, last=path == counting[-1])
        messages += _messages(path, head, found)
        before = found.check
        last = (head, found)
    assert last is not None
    older = [path for path in files if path not in counting]
    return LogContents(
        messages,
        counting,
        older + torn,
        last[0],
        last[1].check,
        last[1].end,
        counting[-1].stat().st_size,
    )


def _unborn(files: list[Path]) -> bool:
    """Whether the last file was being created when all stopped: nothing but a part of its header, or zeros, and it is the
    first of all or the file before is there."""
    data = _bytes(files[-1])
    number = int(files[-1].stem)
    expected = number == 1 or (len(files) > 1 and int(files[-2].stem) == number - 1)
    return expected and segments.header(data) is None and (len(data) <= HEADER or not any(data))


def _header(path: Path, run: bytes) -> Header:
    found = segments.header(_bytes(path))
    if found is None:
        raise DamagedLog(path, 0, "its header is not what was written")
    if found.run != run:
        raise DamagedLog(path, 0, "it is of another run")
    return found


def _read(
    path: Path, run: bytes, number: int, before: int | None, last: bool
) -> tuple[Header, SegmentContents]:
    """One file, after a file whose last batch had this checksum; none: it is the log's start."""
    head = _header(path, run)
    data = _bytes(path)
    if not int(path.stem) == head.number == number:
        raise DamagedLog(path, 0, f"file {number} of the log is due here")
    if (before is None) != (head.number == head.first) or (
        before is not None and head.before != before
    ):
        raise DamagedLog(path, 0, "it does not follow from the file before it")
    try:
        found = segments.found(data, head)
    except BadSegment as error:
        raise DamagedLog(path, error.offset, str(error)) from error
    if not last and found.end < len(data):
        raise DamagedLog(
            path,
            found.end,
            "the bytes are not those that were written, and another file comes after",
        )
    if before is None and number > 1 and not found.batches:
        raise DamagedLog(
            path, found.end, "the bytes that the log starts with are not those that were written"
        )
    return head, found


def _messages(path: Path, head: Header, found: SegmentContents) -> list[Message]:
    try:
        return [
            message
            for at, payload in found.batches
            for message in segments.unpacked(at, payload, head.run)
        ]
    except BadSegment as error:
        raise DamagedLog(path, error.offset, str(error)) from error


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > segments.MOST:
            raise DamagedLog(path, 0, "it is no file that this program writes")
        return path.read_bytes()
    except OSError as error:
        raise DamagedLog(path, 0, f"it cannot be read ({error.strerror})") from error
