"""Reads the write-ahead log: which of its files count, whether they are intact, what they hold.

Nothing is changed on the disk; cleaning up after a crash is up to the writer.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedrfq.consensus.messages import Message
from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.node.storage import segments
from fedrfq.node.storage.segments import HEADER, BadSegment, Header, SegmentContents

FOLDER = "log"
_OF_ANOTHER_RUN = (
    "put the federation.toml of that run back; or, if that run has certified no round and was"
    " founded anew, move log/, audit.log and bodies.bin away"
)


class DamagedLog(UserError):
    """The log is not what was written.

    What this party has signed is no longer known, so it must not go on as if it were: it might
    contradict its own votes.
    """

    def __init__(self, path: Path, offset: int, why: str, remedy: str = "") -> None:
        # An older copy would be worse than none: the party would not know that it has forgotten.
        party = path.parent.parent
        remedy = remedy or (
            "do not restore an older copy, rejoin instead:"
            f" `fedrfq server {party} --rejoin` sets the damaged log aside"
        )
        super().__init__(f"{path}, byte {offset}: {why}; {remedy}")
        self.path = path
        self.offset = offset


class LogContents(NamedTuple):
    """What a log holds.

    `files` are the ones that count, in order; `other` were left over when a crash interrupted their
    creation or removal. The last file is `size` bytes long, and complete up to `end`.
    """

    messages: list[Message]
    files: list[Path]
    other: list[Path]
    header: Header | None
    check: int
    end: int
    size: int


def name(number: int) -> str:
    """Return the name of the log file with this number."""
    return f"{number:08d}.log"


def load(folder: Path, run: bytes) -> LogContents:
    """Read the log in a folder, without the rest of an interrupted flush.

    Raises DamagedLog if anything else differs from what was written.
    """
    # Only names that this program gives: temporary files and an operator's copies do not count.
    files = sorted(folder.glob("[0-9]" * 8 + ".log"))
    unfinished = []
    if files and _is_unfinished(files):
        unfinished = [files.pop()]
    if not files:
        return LogContents([], [], unfinished, None, 0, 0, 0)
    # Compaction writes a new first file and then removes the older ones. If a crash came in
    # between, the newest file tells where the log starts now.
    first = _header(files[-1], run).first
    counting = [path for path in files if int(path.stem) >= first]
    if not counting:
        raise DamagedLog(files[-1], 0, f"the log starts with file {first}, which is missing")
    older = [path for path in files if path not in counting]
    # Each file must continue the one before, so they are read in order, all of them.
    messages = []
    before = None
    for number, path in enumerate(counting, start=first):
        head, contents = _read(path, run, number, before, is_last=path == counting[-1])
        messages += _messages(path, head, contents)
        before = contents.check
    return LogContents(
        messages,
        counting,
        older + unfinished,
        head,
        contents.check,
        contents.end,
        counting[-1].stat().st_size,
    )


def _is_unfinished(files: list[Path]) -> bool:
    """Tell whether a crash interrupted the creation of the last file.

    It then holds nothing but a part of its header, or zeros, and it is either the first file of all
    or directly follows the one before. A file that compaction made is not excused: it gets its name
    only when it is complete.
    """
    data = _bytes(files[-1])
    number = int(files[-1].stem)
    follows = number == 1 or (len(files) > 1 and int(files[-2].stem) == number - 1)
    has_no_batch = len(data) <= HEADER or not any(data)
    return follows and segments.parse_header(data) is None and has_no_batch


def _header(path: Path, run: bytes) -> Header:
    head = segments.parse_header(_bytes(path))
    if head is None:
        raise DamagedLog(path, 0, "its header differs from what was written")
    if head.run != run:
        raise DamagedLog(path, 0, "it belongs to another run", _OF_ANOTHER_RUN)
    return head


def _read(
    path: Path, run: bytes, number: int, before: int | None, *, is_last: bool
) -> tuple[Header, SegmentContents]:
    """Read one file. `before` is the last checksum of the file before it, None for the first."""
    head = _header(path, run)
    data = _bytes(path)
    # A file that was renamed, or copied over another, has the wrong number inside.
    if not int(path.stem) == head.number == number:
        raise DamagedLog(path, 0, f"file {number} of the log should be here")
    # The chain of checksums crosses files, so a file that is missing or older shows here.
    is_first = before is None
    if is_first != (head.number == head.first) or (not is_first and head.before != before):
        raise DamagedLog(path, 0, "it does not continue the file before it")
    try:
        contents = segments.read_batches(data, head)
    except BadSegment as error:
        raise DamagedLog(path, error.offset, str(error)) from error
    # Only the last file can have been in the middle of a flush.
    if not is_last and contents.end < len(data):
        raise DamagedLog(
            path,
            contents.end,
            "these bytes differ from what was written, and another file follows",
        )
    # A first file other than number 1 was made by compaction, complete with its first batch.
    if is_first and number > 1 and not contents.batches:
        raise DamagedLog(
            path, contents.end, "the first bytes of the log differ from what was written"
        )
    return head, contents


def _messages(path: Path, head: Header, contents: SegmentContents) -> list[Message]:
    messages = []
    try:
        for at, payload in contents.batches:
            messages += segments.unpack(at, payload, head.run)
    except BadSegment as error:
        raise DamagedLog(path, error.offset, str(error)) from error
    return messages


def _bytes(path: Path) -> bytes:
    try:
        return regular.read_bytes(path, segments.MAX_FILE_BYTES)
    except OSError as error:
        raise DamagedLog(path, 0, f"it cannot be read ({error.strerror})") from error
