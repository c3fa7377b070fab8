"""LEAF's JSON form of FEMNIST, which says who wrote each image."""

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

# Bytes of one file, which is parsed in memory.
LIMIT = 1 << 31
TEST_SHARE = 0.2

# Images, labels, and the writer of each image.
Part = tuple[NDArray[np.uint8], NDArray[np.int64], list[str]]


def read(path: Path, classes: tuple[str, ...]) -> Content:
    """Return the dataset in a folder with train/*.json and test/*.json, or in one JSON file.

    Of a single file, a fixed fifth of each class is for testing.
    """
    if path.is_dir():
        content = _folder(path, classes)
    else:
        content = _single(path, classes)
    return checked(content, str(path))


def _folder(path: Path, classes: tuple[str, ...]) -> Content:
    train_x, train_y, train_writers = _part(path / "train")
    test_x, test_y, test_writers = _part(path / "test")
    # Numbered together, so that a writer has the same number in both parts.
    groups = _numbered(train_writers + test_writers)
    train_groups = groups[: len(train_y)]
    test_groups = groups[len(train_y) :]
    return Content(train_x, train_y, test_x, test_y, classes, train_groups, test_groups)


def _single(path: Path, classes: tuple[str, ...]) -> Content:
    x, y, writers = _joined([path])
    groups = _numbered(writers)
    train, test = by_content(x, y, TEST_SHARE, str(path))
    return Content(x[train], y[train], x[test], y[test], classes, groups[train], groups[test])


def _part(folder: Path) -> Part:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(
            f"{folder}: expected LEAF's .json files in this folder, found none; "
            "name the folder that contains train and test"
        )
    return _joined(files)


def _joined(files: list[Path]) -> Part:
    # In the order of files and writers, which fixes the order of samples and so their hash.
    parts = []
    for path in files:
        for name, data in _user_data(path).items():
            parts.append(_writer(data, name, path))
    if not parts:
        raise UserError(f"{files[0]}: expected at least one writer, found none; check the file")
    x, y, writers = zip(*parts, strict=True)
    return np.concatenate(x), np.concatenate(y), [name for names in writers for name in names]


def _user_data(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(read_file(path, LIMIT))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected JSON, found: {error}; fetch the file again") from error
    data = None
    if isinstance(loaded, dict):
        data = loaded.get("user_data")
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected LEAF's JSON with user_data, found none; check the file")
    return data


def _writer(data: Any, name: str, path: Path) -> Part:
    """Return one writer's images and labels; a writer without images is allowed."""
    try:
        x = np.array(data["x"], np.float64)
        y = np.atleast_1d(data["y"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path}: expected numbers x and y for writer {name!r:.40}, found: {error!r:.80}; "
            "fetch the file again"
        ) from error
    if len(y) == 0 and x.size == 0:
        return np.empty((0, 1, 28, 28), np.uint8), np.empty(0, np.int64), []
    if not _is_valid(x, y):
        raise UserError(
            f"{path}: expected rows of 784 numbers in [0, 1] and an integer label for each row "
            f"of writer {name!r:.40}, found x {x.shape}, y {y.dtype} {y.shape}; "
            "fetch the file again"
        )
    # LEAF draws black on white, EMNIST white on black.
    inverted = np.rint((1 - x) * 255).astype(np.uint8)
    return inverted.reshape(-1, 1, 28, 28), y.astype(np.int64), [name] * len(y)


def _is_valid(x: NDArray[np.float64], y: NDArray[Any]) -> bool:
    if x.ndim != 2 or x.shape[1] != 784:
        return False
    if y.shape != (len(x),) or y.dtype.kind not in "ui":
        return False
    # NaN fails both comparisons.
    return bool(((x >= 0) & (x <= 1)).all())


def _numbered(writers: list[str]) -> NDArray[np.int64]:
    """Return each writer's place in the sorted list of all writers."""
    place = {name: number for number, name in enumerate(sorted(set(writers)))}
    return np.array([place[name] for name in writers], np.int64)
