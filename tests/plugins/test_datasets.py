"""A dataset of a plugin in the cache: made again when the plugin changes, and never unreadable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedrfq
from fedrfq.api.new_plugin import write
from fedrfq.data import array_file, get, load
from fedrfq.data.cached_dataset import path
from fedrfq.errors import UserError
from support.outside import new_process

PIXELS = ".astype(np.uint8)[:, None]"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "data"))
    written, _ = write("dataset", "cells", tmp_path)
    return written


def edited(file: Path, before: str, after: str) -> None:
    """Change the plugin and give it to a new process."""
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    new_process()
    fedrfq.load_plugin(file)


def test_a_changed_plugin_makes_its_data_anew(file: Path) -> None:
    fedrfq.load_plugin(file)
    first = load("cells").sha256
    stored = path("cells").stat().st_ino
    load("cells")
    assert path("cells").stat().st_ino == stored  # not made again without need
    edited(file, "default_rng(0)", "default_rng(1)")
    second = load("cells").sha256
    assert second != first
    edited(file, "default_rng(1)", "default_rng(2)")
    get("cells", progress=False)
    assert load("cells").sha256 not in {first, second}


def test_data_from_a_file_stay_when_the_plugin_changes(file: Path, tmp_path: Path) -> None:
    fedrfq.load_plugin(file)
    made = load("cells")
    arrays = {"train_x": made.test_x, "train_y": made.test_y, "classes": np.array(made.classes)}
    np.savez(tmp_path / "own.npz", **arrays, test_x=made.train_x, test_y=made.train_y)
    get("cells", tmp_path / "own.npz", progress=False)
    edited(file, "default_rng(0)", "default_rng(1)")
    assert np.array_equal(load("cells").train_x, array_file.read(tmp_path / "own.npz").train_x)


def test_pixels_that_could_not_be_read_back_are_never_stored(file: Path, tmp_path: Path) -> None:
    edited(file, PIXELS, ".astype(np.float32)[:, None] * np.float32('nan')")
    with pytest.raises(UserError, match=r"expected train_x as uint8.*found float32.*for NaN"):
        load("cells")
    assert not (tmp_path / "data" / "cells.npz").exists()
    edited(file, ".astype(np.float32)[:, None] * np.float32('nan')", PIXELS)
    assert load("cells").train_x.dtype == np.uint8


def test_a_damaged_copy_is_told_with_the_plugin_that_makes_it(file: Path, tmp_path: Path) -> None:
    fedrfq.load_plugin(file)
    load("cells")
    (tmp_path / "data" / "cells.npz").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"fedrfq data get cells --plugin cells\.py"):
        load("cells")
