"""LEAF's JSON form of FEMNIST, which knows who wrote each image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.archives import read_file
from fedrfq.data.content import Content, checked
from fedrfq.data.split import by_content
from fedrfq.errors import UserError

LIMIT = 1 << 31
TEST_SHARE = 0.2

Part = tuple[NDArray[np.uint8], NDArray[np.int64], list[str]]  # images, labels, the writer of each


def read(path: Path, classes: tuple[str, ...]) -> Content:
    """A folder with train/*.json and test/*.json, or one JSON file, of which a fixed fifth a class is for testing."""
    if path.is_dir():
        content = _folder(path, classes)
    else:
        content = _single(path, classes)
    return checked(content, str(path))


def _folder(path: Path, classes: tuple[str, ...]) -> Content:
    train_x, train_y, train_who = _part(path / "train")
    test_x, test_y, test_who = _part(path / "test")
    groups = _numbers(train_who + test_who)
    return Content(
        train_x, train_y, test_x, test_y, classes, groups[: len(train_y)], groups[len(train_y) :]
    )


def _single(path: Path, classes: tuple[str, ...]) -> Content:
    x, y, who = _joined([path])
    groups = _numbers(who)
    train, test = by_content(x, y, TEST_SHARE, str(path))
    return Content(x[train], y[train], x[test], y[test], classes, groups[train], groups[test])


def _part(folder: Path) -> Part:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(
            f"{folder}: expected LEAF's .json files in it, found none; name the folder above train and test"
        )
    return _joined(files)


def _joined(files: list[Path]) -> Part:
    parts = [_writer(data, who, path) for path in files for who, data in _writers(path).items()]
    if not parts:
        raise UserError(f"{files[0]}: expected at least one writer, found none; check the file")
    x, y, who = zip(*parts, strict=True)
    return np.concatenate(x), np.concatenate(y), [name for names in who for name in names]


def _writers(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(read_file(path, LIMIT))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected JSON, found: {error}; fetch it again") from error
    if isinstance(loaded, dict):
        data = loaded.get("user_data")
    else:
        data = None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected LEAF's JSON with user_data, found none; check the file")
    return data


def _writer(data: Any, who: str, path: Path) -> Part:
    try:
        x = np.array(data["x"], np.float64)
        y = np.atleast_1d(data["y"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path}: expected numbers x and y for writer {who!r:.40}, found: {error!r:.80}"
        ) from error
    if len(y) == 0 and x.size == 0:
        return np.empty((0, 1, 28, 28), np.uint8), np.empty(0, np.int64), []
    if not _fit(x, y):
        expected = "rows of 784 numbers in [0, 1] and a whole number each"
        raise UserError(
            f"{path}: expected {expected} for {who!r:.40}, found x {x.shape}, y {y.shape}; fetch it again"
        )
    inverted = np.rint((1 - x) * 255).astype(
        np.uint8
    )  # LEAF draws black on white, EMNIST white on black
    return inverted.reshape(-1, 1, 28, 28), y.astype(np.int64), [who] * len(y)


def _fit(x: NDArray[np.float64], y: NDArray[Any]) -> bool:
    shaped = x.ndim == 2 and x.shape[1] == 784 and y.shape == (len(x),) and y.dtype.kind in "ui"
    return shaped and bool(((x >= 0) & (x <= 1)).all())


def _numbers(writers: list[str]) -> NDArray[np.int64]:
    """Each writer's place in the sorted list of all writers."""
    place = {name: number for number, name in enumerate(sorted(set(writers)))}
    return np.array([place[name] for name in writers], np.int64)
