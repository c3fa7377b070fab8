"""Archives and pickles made to do harm."""

import io
import pickle
import tarfile
import zipfile
from contextlib import suppress

import numpy as np
import pytest

from fedrfq.data import archives, load, safe_unpickling
from fedrfq.data.archives import gunzip, read_tar, read_zip
from fedrfq.errors import UserError

OUTSIDE = ["../evil", "a/../../evil", "/evil", "C:\\evil", "a\\..\\evil"]


def tar(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_tar_with_a_name_outside_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="expected relative names inside the archive"):
        read_tar(tar(tmp_path / "a.tgz", (name, b"x"), ("good", b"y")), {"good": 1})


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_zip_with_a_name_outside_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, "x")
        archive.writestr("good", "y")
    with pytest.raises(UserError, match="expected relative names inside the archive"):
        read_zip(tmp_path / "a.zip", {"good": 1})


def test_a_link_does_not_stand_for_a_file(tmp_path):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("good")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(UserError, match="expected the member good, found none"):
        read_tar(tmp_path / "a.tgz", {"good": 100})


def test_a_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good", bytes(1_000_000))
    with pytest.raises(UserError, match="expected at most 1000 bytes"):
        read_zip(tmp_path / "a.zip", {"good": 1000})
    with pytest.raises(UserError, match="expected at most 1000 bytes"):
        read_tar(tar(tmp_path / "a.tgz", ("good", bytes(1_000_000))), {"good": 1000})
    import gzip

    with pytest.raises(UserError, match="expected at most 1000 bytes"):
        gunzip(gzip.compress(bytes(1_000_000)), 1000, "a bomb")


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(UserError, match="at most 3 members"):
        read_tar(tar(tmp_path / "a.tgz", *[(str(number), b"") for number in range(4)]), {})


def npz(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return str(path)


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 28, 28), }\n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 28, 28), }\n",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
        "{'descr': '<c16', 'fortran_order': False, 'shape': (0,), }\n",
        "__import__('os').system('true')\n",
        "(" * 5000,
        "",
    ],
)
def test_a_lying_npy_header_is_refused(tmp_path, text):
    with pytest.raises(UserError, match="train_x: expected"):
        load(npz(tmp_path / "a.npz", train_x=header(text)))


def test_no_broken_npz_escapes_as_another_error(tmp_path):
    images = np.zeros((2, 4, 4), np.uint8)
    labels = np.arange(2)
    np.savez_compressed(
        tmp_path / "a.npz", train_x=images, train_y=labels, test_x=images, test_y=labels
    )
    whole = (tmp_path / "a.npz").read_bytes()
    random = np.random.default_rng(11)
    for _ in range(400):
        data = bytearray(whole)
        for at in random.integers(0, len(data), 3):
            data[at] = random.integers(0, 256)
        (tmp_path / "a.npz").write_bytes(data[: random.integers(1, 3 * len(data))])
        with suppress(UserError):
            load(str(tmp_path / "a.npz"))


class Bomb:
    def __init__(self, call, *given):
        self.given = (call, given)

    def __reduce__(self):
        return self.given


@pytest.mark.parametrize(
    "call", [(print, "gone off"), (eval, "1"), (open, "x"), (__import__, "os")]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_anything_is_refused(call, protocol, capsys):
    with pytest.raises(UserError, match="found a call of"):
        safe_unpickling.tensors(pickle.dumps({"a": Bomb(*call)}, protocol), "a bomb")
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bomb_inside_a_storage_is_refused(capsys):
    import torch

    inner = pickle.dumps(Bomb(print, "gone off"))
    with pytest.raises(UserError, match="expected a pickle of tensors"):
        safe_unpickling.tensors(pickle.dumps(Bomb(torch.storage._load_from_bytes, inner)), "a bomb")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04", b"nonsense", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f"]
)
def test_a_broken_pickle_is_refused(data):
    with pytest.raises(UserError, match="expected a pickle of tensors"):
        safe_unpickling.tensors(data, "a pickle")


def test_tensors_come_through():
    import torch

    given = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
    found = safe_unpickling.tensors(pickle.dumps(given), "a pickle")
    assert all(torch.equal(given[name], found[name]) for name in given)
