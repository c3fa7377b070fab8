"""The write-ahead log: every completed flush survives, and anything altered is refused."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedrfq.consensus.messages import Message, Part, PartKind, unsigned
from fedrfq.errors import UserError
from fedrfq.node.storage import disk, segments
from fedrfq.node.storage.log_reader import load
from fedrfq.node.storage.write_ahead_log import DamagedLog, DiskFull, WriteAheadLog

RUN = bytes(range(32))


def message(number: int, size: int = 5, run: bytes = RUN) -> Message:
    return unsigned(run, Part(number, PartKind.GLOBALS, bytes([number]) * size))


def rounds(messages: list[Message]) -> list[int]:
    return [message.body.round for message in messages]


def filled(folder: Path, *flushes: list[int], segment_bytes: int = 1 << 20) -> Path:
    folder.mkdir(exist_ok=True)
    store = WriteAheadLog.open(folder, RUN, segment_bytes=segment_bytes)
    for numbers in flushes:
        for number in numbers:
            store.append(message(number))
        store.flush()
    store.close()
    return folder


def reopened(folder: Path) -> list[int]:
    store = WriteAheadLog.open(folder, RUN)
    store.close()
    return rounds(store.messages)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "log").iterdir())


# What was flushed is there


def test_messages_come_back_in_order_to_the_byte(tmp_path: Path) -> None:
    store = WriteAheadLog.open(filled(tmp_path / "a", [1, 2], [3]), RUN)
    assert [m.wire for m in store.messages] == [message(k).wire for k in (1, 2, 3)]
    store.append(message(4))
    assert rounds(store.messages) == [1, 2, 3, 4]
    # What was only appended is not on the disk.
    assert rounds(load(tmp_path / "a" / "log", RUN).messages) == [1, 2, 3]
    store.flush()
    assert rounds(load(tmp_path / "a" / "log", RUN).messages) == [1, 2, 3, 4]
    store.close()
    assert not store.dropped
    assert files(tmp_path / "a")[0].stat().st_mode & 0o777 == 0o600


def test_a_flush_is_one_write_and_one_sync_and_an_empty_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WriteAheadLog.open(tmp_path, RUN)
    calls: list[str] = []
    for name in ("write", "fdatasync", "fsync"):
        monkeypatch.setattr(disk.os, name, _recorded(calls, name, getattr(os, name)))
    store.flush()
    for number in range(5):
        store.append(message(number))
    store.flush()
    assert calls == ["write", "fdatasync"]
    store.close()


def _recorded(calls: list[str], name: str, real: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        calls.append(name)
        return real(*arguments)

    return call


def test_files_are_rotated_and_read_in_order(tmp_path: Path) -> None:
    folder = filled(tmp_path, *([k] for k in range(1, 30)), segment_bytes=400)
    assert len(files(folder)) > 3
    assert reopened(folder) == list(range(1, 30))
    store = WriteAheadLog.open(folder, RUN)
    assert store.size == sum(path.stat().st_size for path in files(folder))
    store.close()


def test_a_message_longer_than_a_file_is_kept(tmp_path: Path) -> None:
    store = WriteAheadLog.open(tmp_path, RUN, segment_bytes=100)
    for number in (1, 2):
        store.append(message(number, 1000))
        store.flush()
    store.close()
    assert reopened(tmp_path) == [1, 2]


def test_more_than_can_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WriteAheadLog.open(filled(tmp_path, [1]), RUN)
    monkeypatch.setattr(segments, "MAX_FILE_BYTES", 1000)
    store.append(message(2, 1000))
    with pytest.raises(ValueError, match="could not be read again"):
        store.flush()
    with pytest.raises(DiskFull, match="was interrupted"):
        store.append(message(3))
    store.close()
    assert reopened(tmp_path) == [1]


def test_a_folder_is_one_process_s(tmp_path: Path) -> None:
    store = WriteAheadLog.open(tmp_path, RUN)
    with pytest.raises(UserError, match="in use by another process"):
        WriteAheadLog.open(tmp_path, RUN)
    with pytest.raises(UserError, match="in use by another process"):
        WriteAheadLog.reset(tmp_path)
    store.close()
    WriteAheadLog.open(tmp_path, RUN).close()
    with pytest.raises(UserError, match="name a party's folder"):
        WriteAheadLog.open(tmp_path / "none", RUN)


# Torn tails


def test_a_log_cut_at_any_byte_opens_with_the_flushes_that_are_whole(tmp_path: Path) -> None:
    path = files(filled(tmp_path, [1], [2, 3], [4]))[0]
    whole = path.read_bytes()
    ends = []
    for at, payload in segments.read_batches(whole, segments.parse_header(whole)).batches:
        ends.append(at + segments.HEAD + len(payload))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        store = WriteAheadLog.open(tmp_path, RUN)
        there = sum(end <= size for end in ends)
        assert rounds(store.messages) == [[], [1], [1, 2, 3]][there], size
        assert bool(store.dropped) == (size not in (segments.HEADER, *ends)), size
        store.append(message(9))  # and it goes on from there
        store.close()
        assert reopened(tmp_path) == [*rounds(store.messages)], size
        path.write_bytes(whole)


def test_the_last_of_many_files_cut_at_any_byte_opens(tmp_path: Path) -> None:
    folder = filled(tmp_path, *([k] for k in range(1, 12)), segment_bytes=400)
    path = files(folder)[-1]
    whole = path.read_bytes()
    before = len(files(folder))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        found = reopened(folder)
        assert found == list(range(1, len(found) + 1))
        assert len(files(folder)) == before - (size < segments.HEADER)
        path.write_bytes(whole)


@pytest.mark.parametrize("tail", [bytes(5000), b"\xff" * 99, b"\xf5log" * 300])
def test_what_a_file_system_puts_at_the_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    path = files(filled(tmp_path, [1], [2]))[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail)
    store = WriteAheadLog.open(tmp_path, RUN)
    store.close()
    assert rounds(store.messages) == [1, 2]
    assert store.dropped == f"{path}: {len(tail)} bytes of an interrupted flush"
    assert path.stat().st_size == size
    assert not WriteAheadLog.open(tmp_path, RUN).dropped


def test_what_a_client_uploads_is_never_taken_for_a_batch(tmp_path: Path) -> None:
    """A torn flush contains a batch of another file: the salt tells them apart."""
    inner = files(filled(tmp_path / "other", [7]))[0].read_bytes()[segments.HEADER :]
    (tmp_path / "mine").mkdir()
    store = WriteAheadLog.open(tmp_path / "mine", RUN)
    store.append(unsigned(RUN, Part(1, PartKind.GLOBALS, inner + bytes(100))))
    store.close()
    path = files(tmp_path / "mine")[0]
    os.truncate(path, path.stat().st_size - 1)
    assert reopened(tmp_path / "mine") == []


# Damage


def refused(folder: Path) -> DamagedLog:
    with pytest.raises(DamagedLog, match=f"`fedrfq server {folder} --rejoin`") as caught:
        WriteAheadLog.open(folder, RUN)
    return caught.value


def test_any_byte_changed_before_the_last_flush_is_damage_and_in_it_drops_it(
    tmp_path: Path,
) -> None:
    path = files(filled(tmp_path, [1], [2, 3], [4]))[0]
    whole = path.read_bytes()
    starts = [at for at, _ in segments.read_batches(whole, segments.parse_header(whole)).batches]
    for at in range(len(whole)):
        for bit in (0, 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
            if at >= starts[-1]:
                assert reopened(tmp_path) == [1, 2, 3], at
            else:
                damage = refused(tmp_path)
                # Damage is reported at the start of the batch it is in, or of the header.
                start = max([0, *(start for start in starts if start <= at)])
                assert (damage.path, damage.offset) == (path, start), at
            path.write_bytes(whole)


def test_any_byte_changed_in_an_earlier_file_is_damage(tmp_path: Path) -> None:
    folder = filled(tmp_path, *([k] for k in range(1, 12)), segment_bytes=400)
    path = files(folder)[-2]
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert refused(folder).path == path, at
        path.write_bytes(whole[:at])  # between two batches it is the next file that does not follow
        refused(folder)
    path.write_bytes(whole)
    assert len(reopened(folder)) == 11


def test_a_flush_cut_out_or_moved_is_damage(tmp_path: Path) -> None:
    path = files(filled(tmp_path, [1], [2], [3]))[0]
    whole = path.read_bytes()
    one, two, three = (
        at for at, _ in segments.read_batches(whole, segments.parse_header(whole)).batches
    )
    for changed in (
        whole[:two] + whole[three:],
        whole[:one] + whole[two:three] + whole[one:two] + whole[three:],
    ):
        path.write_bytes(changed)
        assert refused(tmp_path).path == path


def test_a_missing_swapped_foreign_or_older_file_is_damage(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a", *([k] for k in range(1, 30)), segment_bytes=400)
    one, two, three, *_ = files(folder)
    for wrong in (
        lambda: two.unlink(),
        lambda: one.unlink(),
        lambda: (two.rename(tmp_path / "x"), three.rename(two), (tmp_path / "x").rename(three)),
        lambda: shutil.copy(filled(tmp_path / "b", [5], [6]) / "log" / one.name, one),
    ):
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "saved")
        wrong()
        refused(folder)
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "saved", folder)
    with pytest.raises(DamagedLog, match="belongs to another run"):
        WriteAheadLog.open(folder, bytes(32))
    assert len(reopened(folder)) == 29


def test_a_log_elsewhere_is_refused(tmp_path: Path) -> None:
    """A link is moved to past/ at the end of a run, and the next log would be somewhere else."""
    filled(tmp_path / "a", [1])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "log").symlink_to(tmp_path / "a" / "log")
    with pytest.raises(UserError, match="is a link to another folder"):
        WriteAheadLog.open(tmp_path / "b", bytes(32))


def test_what_is_no_lack_of_room_asks_for_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in its place")
    with pytest.raises(UserError, match=r"File exists.*check the folder and its permissions, then"):
        WriteAheadLog.open(tmp_path, bytes(32))


def test_a_batch_of_messages_that_are_none_is_damage(tmp_path: Path) -> None:
    for payload in (
        b"\x05\0\0\0hello",
        b"\xff\xff\xff\xff",
        segments.pack([message(1, run=bytes(32))]),
    ):
        path = files(filled(tmp_path, [1]))[0]
        data = path.read_bytes()
        head = segments.parse_header(data)
        path.write_bytes(
            data + segments.batch(head.seed, segments.read_batches(data, head).check, payload)[0]
        )
        assert refused(tmp_path).offset == len(data) + segments.HEAD
        shutil.rmtree(tmp_path / "log")


def test_what_is_no_file_of_ours_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = files(filled(tmp_path, [1]))[0]
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "it is a link" in str(refused(tmp_path))
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 40)
    assert "it has 1,099,511,627,776 bytes" in str(refused(tmp_path))


def test_a_damaged_log_is_set_aside_and_nothing_is_removed(tmp_path: Path) -> None:
    assert not any(WriteAheadLog.reset(tmp_path).iterdir())
    for number in (2, 3):
        before = files(filled(tmp_path, [number]))[0].read_bytes()
        assert WriteAheadLog.reset(tmp_path) == tmp_path / f"log.damaged-{number}"
        assert [path.read_bytes() for path in (tmp_path / f"log.damaged-{number}").iterdir()] == [
            before
        ]
        assert not (tmp_path / "log").exists()
    assert reopened(tmp_path) == []


# Compacting


def test_compacting_leaves_one_file_and_goes_on(tmp_path: Path) -> None:
    store = WriteAheadLog.open(
        filled(tmp_path, *([k] for k in range(1, 30)), segment_bytes=400), RUN, segment_bytes=400
    )
    store.append(message(30))  # not flushed yet
    store.compact([message(28), message(30)])
    assert rounds(store.messages) == [28, 30]
    assert len(files(tmp_path)) == 1
    assert store.size == files(tmp_path)[0].stat().st_size
    for number in range(31, 40):
        store.append(message(number))
        store.flush()
    store.close()
    assert len(files(tmp_path)) > 1
    assert reopened(tmp_path) == [28, *range(30, 40)]


def test_a_compacted_log_cut_off_is_damage(tmp_path: Path) -> None:
    """A compacted file is complete before it gets its name, so no crash leaves less of it."""
    store = WriteAheadLog.open(filled(tmp_path, [1], [2]), RUN)
    store.compact([message(2)])
    store.close()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(tmp_path)
    path.write_bytes(whole)
    assert reopened(tmp_path) == [2]


class Crash(BaseException):
    pass


def test_a_crash_at_any_step_of_compacting_or_rotating_leaves_a_log_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop after every prefix of the disk operations, and in the middle of every write."""
    steps = 0
    outcomes = set()
    while True:
        for half in (False, True):
            folder = tmp_path / f"{steps}-{half}"
            store = WriteAheadLog.open(
                filled(folder, [1], [2], [3], segment_bytes=200), RUN, segment_bytes=200
            )
            with monkeypatch.context() as patched:
                _crash_after(patched, steps, half)
                try:
                    store.compact([message(3)])
                    store.append(message(4))
                    store.flush()
                    store.append(message(5))
                    store.flush()
                    done = True
                except Crash:
                    done = False
            shutil.copytree(folder, tmp_path / "copy")
            found = reopened(tmp_path / "copy")
            assert found in ([1, 2, 3], [3], [3, 4], [3, 4, 5]), (steps, half)
            assert not list((tmp_path / "copy" / "log").glob("*.tmp"))
            outcomes.add(tuple(found))
            shutil.rmtree(tmp_path / "copy")
            store.close()
        if done:
            break
        steps += 1
    assert steps > 12
    assert outcomes == {(1, 2, 3), (3,), (3, 4), (3, 4, 5)}


def _crash_after(patched: pytest.MonkeyPatch, steps: int, half: bool) -> None:
    """Let so many calls through; the next one crashes, or, if it is a write, halfway through."""
    left = [steps]

    def counted(real: Callable[..., object], name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] >= 0:
                return real(*arguments, **options)
            if half and name == "write":
                data = arguments[1]
                assert isinstance(data, memoryview)
                real(arguments[0], data[: len(data) // 2])
            raise Crash

        return call

    for name in ("open", "write", "fdatasync", "fsync"):
        patched.setattr(os, name, counted(getattr(os, name), name))
    for name in ("rename", "unlink"):
        patched.setattr(Path, name, counted(getattr(Path, name), name))


# A disk that takes nothing more

FILLING = """
import sys
from pathlib import Path
from fedrfq.consensus.messages import Part, PartKind, unsigned
from fedrfq.node.storage.write_ahead_log import DiskFull, WriteAheadLog

run = bytes(range(32))
store = WriteAheadLog.open(Path(sys.argv[1]), run)
number = 0
try:
    while True:
        store.append(unsigned(run, Part(number + 1, PartKind.GLOBALS, bytes(1000))))
        store.flush()
        number += 1
except DiskFull:
    print(number)
for again in (store.flush, lambda: store.append(store.messages[0]), lambda: store.compact([])):
    try:
        again()
    except DiskFull as error:
        print(error)
store.close()
"""


def test_a_full_disk_keeps_what_was_flushed_and_takes_nothing_more(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_500, 20_500))

    script = [
        sys.executable,
        "-c",
        f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN){FILLING}",
        str(tmp_path),
    ]
    done = subprocess.run(
        script, capture_output=True, text=True, preexec_fn=limit, timeout=120, check=True
    )
    number, *errors = done.stdout.splitlines()
    assert int(number) > 10
    assert len(errors) == 3
    assert all("cannot be written" in line and "free some space" in line for line in errors)
    store = WriteAheadLog.open(tmp_path, RUN)
    assert rounds(store.messages) == list(range(1, int(number) + 1))
    assert "interrupted flush" in store.dropped  # the write that did not fit
    store.close()


def test_a_sync_that_fails_is_as_bad_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync is not repeated: the second try may succeed although the data are lost."""
    store = WriteAheadLog.open(tmp_path, RUN)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", _broken)
        store.append(message(1))
        with pytest.raises(DiskFull):
            store.flush()
    with pytest.raises(DiskFull, match="Input/output error"):
        store.flush()
    store.close()


def _broken(handle: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
