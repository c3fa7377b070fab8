"""Frames survive any cut of their stream, and one that is too long is refused at its header."""

from __future__ import annotations

import resource
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrfq.files.atomic import raise_open_file_limit
from fedrfq.node.transport.budget import Bucket
from fedrfq.node.transport.door import Door, origin
from fedrfq.node.transport.frames import EMPTY, Frames, Oversized, header


def stream(frames: list[bytes]) -> bytes:
    return b"".join(header(frame) + frame for frame in frames)


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 40))
def test_frames_survive_any_cut(sent: list[bytes], piece: int) -> None:
    frames = Frames(20)
    data = stream(sent)
    received = []
    for at in range(0, len(data), piece):
        received += frames.take(data[at : at + piece])
    assert received == sent


def test_an_empty_frame_is_its_header() -> None:
    assert stream([b""]) == EMPTY
    assert list(Frames(0).take(EMPTY * 2)) == [b"", b""]


def test_a_frame_of_the_largest_size_is_taken_and_one_byte_more_refused_at_its_header() -> None:
    assert list(Frames(3).take(stream([b"abc"]))) == [b"abc"]
    with pytest.raises(Oversized):
        list(Frames(3).take(stream([b"abcd"])[:4]))
    with pytest.raises(Oversized):
        list(Frames(3).take(stream([b"abcd"])))


def test_frames_before_an_oversized_one_are_heard() -> None:
    cut = Frames(3).take(stream([b"a", b"abcd"]))
    assert next(cut) == b"a"
    with pytest.raises(Oversized):
        next(cut)


def test_an_announcement_takes_no_memory_and_nothing_stays_when_all_is_cut() -> None:
    tracemalloc.start()
    frames = Frames(1 << 30)
    list(frames.take(b"\xff\xff\xff\x0f"))
    assert tracemalloc.get_traced_memory()[0] < 1 << 16
    for _ in range(4):
        assert sum(map(len, frames.take(b"x" * 1000))) == 0
    many = Frames(1 << 20)
    for _ in range(64):
        assert [len(frame) for frame in many.take(stream([b"y" * 50_000]))] == [50_000]
    assert tracemalloc.get_traced_memory()[0] < 1 << 16
    tracemalloc.stop()


def test_a_bucket_is_overdrawn_and_repaid() -> None:
    bucket = Bucket(rate=10, burst_s=2, now=0)
    assert bucket.spend(20, 0) == 0
    assert bucket.spend(5, 0) == pytest.approx(0.5)
    assert bucket.spend(0, 0.25) == pytest.approx(0.25)
    assert bucket.spend(20, 100) == 0, "what was not used adds up to a burst"
    assert bucket.spend(1, 100) == pytest.approx(0.1), "and to no more"


def test_the_oldest_makes_room_at_the_door_first_of_its_own_address() -> None:
    door: Door[str] = Door(4, 2)
    assert [door.enter(guest, "1.1.1.1") for guest in ("a", "b")] == [None, None]
    assert door.enter("x", "2.2.2.2") is None
    assert door.enter("c", "1.1.1.1") == "a"
    door.leave("a")
    assert door.enter("y", "3.3.3.3") is None
    assert door.enter("z", "4.4.4.4") == "b"
    door.leave("b")
    assert "b" not in door
    assert "z" in door
    assert door.enter("d", "1.1.1.1") == "x", "the address has room again, the door has not"
    door.leave("x")
    door.leave("x")


def test_a_network_of_ipv6_is_one_address() -> None:
    assert origin("2001:db8::1") == origin("2001:db8::ffff:1") != origin("2001:db8:0:1::1")
    assert origin("::ffff:1.2.3.4") == origin("1.2.3.4")
    assert origin("fe80::1%eth0") == "fe80::"


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "got"),
    [
        (100, 200, 50, 100),
        (100, 200, 150, 150),
        (100, 200, 300, 200),
        (-1, -1, 300, 300),
        (100, -1, 300, 300),
    ],
)
def test_open_files_are_asked_for_as_far_as_they_go(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, got: int
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: asked.append(limits))
    assert raise_open_file_limit(wanted) == got
    assert asked == ([] if got == soft or soft == -1 else [(got, hard)])
