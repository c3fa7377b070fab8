"""CIFAR-10 and FEMNIST in all the forms they come in."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedrfq.data import DATASETS, cifar10, femnist, get, load
from fedrfq.data.content import sha256
from fedrfq.errors import UserError
from support.paths import SHARED

EMNIST = SHARED / "data" / "emnist_byclass62.npz"
RANDOM = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def photographs():
    """Two images a batch in N×C×H×W, and their labels."""
    images = RANDOM.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    return images, np.arange(12) % 10


def binary(path, images, labels):
    records = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(12, -1)], axis=1)
    names = [f"cifar-10-batches-bin/{batch}.bin" for batch in cifar10.BATCHES]
    members = {"cifar-10-batches-bin/readme.html": b""}
    members |= zip(names, map(bytes, records.reshape(6, -1)), strict=True)
    return tar(path, members)


def package(path, images, labels):
    rows = images.transpose(0, 2, 3, 1).reshape(6, 2, 1024, 3)
    members = {}
    for batch, row in zip(cifar10.BATCHES, rows, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(row).save(buffer, "png")
        members[f"package/{batch}.png"] = buffer.getvalue()
    members["package/train_lables.json"] = json.dumps(labels[:10].tolist()).encode()
    members["package/test_lables.json"] = json.dumps(labels[10:].tolist()).encode()
    return tar(path, members)


def test_cifar10_is_the_same_from_both_forms(photographs, tmp_path, monkeypatch):
    official = cifar10.from_file(binary(tmp_path / "cifar-10-binary.tar.gz", *photographs))
    assert (official.train_x == photographs[0][:10]).all()
    assert official.test_y.tolist() == [0, 1]
    packaged = cifar10.from_package(package(tmp_path / "p.tgz", *photographs))
    assert sha256(packaged) == sha256(official)
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], sha256=sha256(official)))
    get("cifar10", source=tmp_path / "cifar-10-binary.tar.gz", progress=False)


def test_cifar10_with_a_broken_batch_is_refused(photographs, tmp_path):
    names = [f"cifar-10-batches-bin/{batch}.bin" for batch in cifar10.BATCHES]
    with pytest.raises(UserError, match="records of 3073 bytes"):
        cifar10.from_file(tar(tmp_path / "c.tar.gz", dict.fromkeys(names, b"\x00" * 3072)))
    with pytest.raises(UserError, match="expected the member cifar-10-batches-bin/data_batch_1"):
        cifar10.from_file(tar(tmp_path / "c.tar.gz", {}))
    with pytest.raises(UserError, match="found no file"):
        cifar10.from_file(tmp_path / "none.tar.gz")


@pytest.mark.parametrize("labels", [b"{", b'["a"]', b"[1e400]", b"null", b"[" * 99_999])
def test_cifar10_with_broken_labels_is_refused(photographs, tmp_path, labels):
    path = package(tmp_path / "p.tgz", *photographs)
    with tarfile.open(path) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}
    with pytest.raises(UserError):
        cifar10.from_package(tar(path, {**members, "package/train_lables.json": labels}))


def idx(array):
    magic = bytes((0, 0, 8, array.ndim))
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return magic + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def letters():
    """EMNIST's four files, packed, and the training images the right way up."""
    upright = RANDOM.integers(0, 256, (70, 28, 28), dtype=np.uint8)
    labels = np.arange(70) % 62
    stored = (upright.swapaxes(1, 2), labels, upright[:9].swapaxes(1, 2), labels[:9])
    pairs = zip(femnist.STEMS, stored, strict=True)
    files = {f"{stem}.gz": gzip.compress(idx(array)) for stem, array in pairs}
    return files, upright


def test_emnist_files_are_turned_upright(letters, tmp_path):
    files, upright = letters
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    get("femnist", source=tmp_path, progress=False)
    data = load("femnist")
    assert (data.train_x[:, 0] == upright).all()
    assert data.classes[10] == "A"
    assert data.classes[61] == "z"
    # Naming any of the four files will do.
    content = femnist.from_file(tmp_path / f"{femnist.STEMS[0]}.gz")
    assert (content.train_x[:, 0] == upright).all()


def test_emnist_from_its_zip(letters, tmp_path):
    files, upright = letters
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        archive.writestr("gzip/other.txt", "")
        for name, data in files.items():
            archive.writestr(f"gzip/{name}", data)
    assert (femnist.from_file(tmp_path / "gzip.zip").train_x[:, 0] == upright).all()


def writer(count, value=1.0, first=0):
    return {"x": [[value] * 784] * count, "y": [(first + number) % 62 for number in range(count)]}


def leaf(path, **writers):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(writers), "num_samples": [], "user_data": writers}))
    return path


def test_leaf_keeps_writers_and_inverts(tmp_path):
    leaf(tmp_path / "train" / "a.json", zoe=writer(3), ann=writer(2, 0.25))
    leaf(tmp_path / "train" / "b.json", bob=writer(1), none={"x": [], "y": []})
    leaf(tmp_path / "test" / "a.json", zoe=writer(1, 0.0))
    get("femnist", source=tmp_path, progress=False)
    data = load("femnist")
    assert data.train_groups.tolist() == [2, 2, 2, 0, 0, 1]
    assert data.test_groups.tolist() == [2]
    assert data.train_x[0].max() == 0
    assert (data.train_x[3] == 191).all()
    assert (data.test_x == 255).all()


def test_leaf_in_one_file_is_split(tmp_path):
    path = leaf(tmp_path / "all.json", ann=writer(62), bob=writer(62, 0.5))
    content = femnist.from_file(path)
    assert len(content.train_y) == len(content.test_y) == 62
    assert content.train_groups is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "expected JSON"),
        ("[" * 99_999, "expected JSON"),
        ("[]", "with user_data"),
        ('{"user_data": 3}', "with user_data"),
        ('{"user_data": {}}', "at least one writer"),
        ('{"user_data": {"ann": 3}}', "expected numbers x and y for writer 'ann'"),
        ('{"user_data": {"ann": {"x": [["a"]], "y": [1]}}}', "expected numbers x and y"),
        ('{"user_data": {"ann": {"x": [[0.5]], "y": [1]}}}', "rows of 784 numbers"),
        (json.dumps({"user_data": {"ann": {"x": [[1.5] * 784], "y": [1]}}}), "rows of 784 numbers"),
        (
            json.dumps({"user_data": {"ann": {"x": [[float("nan")] * 784], "y": [1]}}}),
            "rows of 784 numbers",
        ),
        (
            json.dumps({"user_data": {"ann": {"x": [[0.5] * 784], "y": [1.5]}}}),
            "an integer label for each row",
        ),
        (json.dumps({"user_data": {"ann": {"x": [[0.5] * 784], "y": 1}}}), "at least 2 images"),
        (
            json.dumps(
                {"user_data": {"ann": writer(62), "bob": {"x": [[1] * 784] * 2, "y": [62] * 2}}}
            ),
            "2 images",
        ),
        (
            json.dumps({"user_data": {"ann": {"x": [[1] * 784] * 2, "y": [62] * 2}}}),
            "labels 0 to 61, found 62",
        ),
    ],
)
def test_broken_leaf_files_are_refused(tmp_path, text, reason):
    (tmp_path / "all.json").write_text(text)
    with pytest.raises(UserError, match=reason):
        femnist.from_file(tmp_path / "all.json")


def test_femnist_of_other_classes_or_size_is_refused(tmp_path):
    images = np.zeros((2, 28, 20), np.uint8)
    labels = np.arange(2)
    np.savez(tmp_path / "f.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    with pytest.raises(UserError, match="expected the 62 classes"):
        get("femnist", source=tmp_path / "f.npz", progress=False)
    with pytest.raises(UserError, match="found nothing there"):
        get("femnist", source=tmp_path / "f.txt", progress=False)


def test_femnist_is_converted_again_from_a_new_file(tmp_path):
    for count in (2, 3):
        images = np.zeros((count, 28, 28), np.uint8)
        labels = np.arange(count)
        np.savez(tmp_path / "f.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
        get("femnist", source=tmp_path / "f.npz", progress=False)
        assert len(load("femnist").train_y) == count


@pytest.mark.skipif(not EMNIST.is_file(), reason="needs the shared EMNIST arrays")
def test_the_shared_emnist_arrays():
    get("femnist", source=EMNIST, progress=False)
    data = load("femnist")
    assert data.train_x.shape == (96_962, 1, 28, 28)
    assert data.test_x.shape == (19_361, 1, 28, 28)


@pytest.mark.parametrize("look_up", [load, get])
def test_a_name_that_is_nearly_known_gets_a_suggestion(look_up):
    with pytest.raises(UserError, match=r"found 'cifar-10'.* \(did you mean cifar10\?\)"):
        look_up("cifar-10")
