"""Regular files only, no more bytes than stated, and nothing outside of a folder."""

import os

import pytest

from fedrfq import UserError
from fedrfq.files import hash_chain, regular, tensors, toml
from fedrfq.files.atomic import reporting_write_errors, write_atomically
from fedrfq.files.csv_text import csv_text
from fedrfq.files.strict_json import from_json
from support.unusual import put_instead


@pytest.mark.parametrize(
    ("kind", "why"),
    [("pipe", "a pipe"), ("link", "a link"), ("folder", "a folder"), ("sparse", "1,099,511")],
)
def test_what_is_unusual_is_refused_at_once(tmp_path, kind, why):
    put_instead(tmp_path / "file", kind)
    with pytest.raises(OSError, match=why):
        regular.read_bytes(tmp_path / "file", 100)


def test_links_of_a_users_own_are_followed_but_not_to_a_device(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert regular.read_bytes(tmp_path / "link", 3, links=True) == b"abc"
    with pytest.raises(OSError, match="3 bytes, and at most 2"):
        regular.read_bytes(tmp_path / "link", 2, links=True)
    put_instead(tmp_path / "zeros", "link")
    with pytest.raises(OSError, match="a pipe, socket or device"):
        regular.read_bytes(tmp_path / "zeros", 100, links=True)


def test_what_took_the_files_place_after_the_first_look_is_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    found = (tmp_path / "file").stat()
    monkeypatch.setattr("pathlib.Path.stat", lambda *_, **__: found)
    with pytest.raises(OSError, match="a pipe"):
        regular.open_regular(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        regular.open_regular(tmp_path / "link")


def test_lines_are_complete_and_bounded(tmp_path):
    (tmp_path / "file").write_bytes(b"one\ntwo\nthr")
    assert list(regular.lines(tmp_path / "file", 4)) == [b"one\n", b"two\n"]
    with pytest.raises(OSError, match="a line of more than 3 bytes"):
        list(regular.lines(tmp_path / "file", 3))


def test_a_chain_and_tensors_are_not_read_through_links(tmp_path):
    put_instead(tmp_path / "file", "link")
    with pytest.raises(OSError, match="a link"):
        list(hash_chain.entries(tmp_path / "file", bytes(32)))
    with pytest.raises(OSError, match="a link"):
        hash_chain.append(tmp_path / "file", bytes(32), b"")
    with pytest.raises(UserError, match="a link"):
        tensors.load(tmp_path / "file")


def test_a_link_is_replaced_by_what_is_written(tmp_path):
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / "file").symlink_to("outside")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_a_full_disk_names_no_option():
    """Servers and clients write like this, too, and have no --out."""
    with (
        pytest.raises(UserError, match=r"No space left on device; free some space on its disk$"),
        reporting_write_errors("/dev/full"),
        open("/dev/full", "wb", buffering=0) as file,  # noqa: PTH123
    ):
        file.write(b"x")


def test_hostile_texts_do_not_reach_a_parsers_stack_or_memory():
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json("[" * 100_000)
    with pytest.raises(ValueError, match="line 2 is neither"):
        toml.plain("rounds = 1\na" + ".a" * 500_000 + " = 1")


def test_a_spreadsheet_computes_no_cell_of_ours():
    rows = [
        {"class": "=cmd|' /C calc'!A0", "gain": -1.5},
        {"class": "@SUM(A1)", "gain": "-2.5"},
        {"class": "\tx", "gain": "-x"},
        {"class": "a-b", "gain": None},
    ]
    assert csv_text(["class", "gain"], rows) == (
        "class,gain\n'=cmd|' /C calc'!A0,-1.5\n'@SUM(A1),-2.5\n'\tx,'-x\na-b,\n"
    )
    assert csv_text(["gain"], rows[:1], header=False) == "-1.5\n"
