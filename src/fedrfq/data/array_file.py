"""A dataset as an .npz of arrays: the user's own, in any usual layout, and ours in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data import npz
from fedrfq.data.content import MOST_CLASSES, Content, checked
from fedrfq.errors import UserError

REQUIRED = ("train_x", "train_y", "test_x", "test_y")
OPTIONAL = ("classes", "train_groups", "test_groups")


def read(path: Path, classes: tuple[str, ...] | None = None) -> Content:
    """The content of the .npz at `path`; `classes` are the class names where the file has none."""
    if not path.is_file():
        raise UserError(f"{path}: expected an .npz file, found none; check the path")
    arrays = npz.read(path, REQUIRED + OPTIONAL)
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise UserError(
            f"{path}: expected arrays {', '.join(REQUIRED)}, found no {missing[0]}; add it"
        )
    integers = {
        name: _integers(arrays, name, path)
        for name in ("train_y", "test_y", "train_groups", "test_groups")
    }
    return checked(_content(arrays, integers, classes, path), str(path))


def _content(
    arrays: dict[str, NDArray[Any]],
    integers: dict[str, NDArray[np.int64] | None],
    classes: tuple[str, ...] | None,
    path: Path,
) -> Content:
    train_y = integers["train_y"]
    test_y = integers["test_y"]
    assert train_y is not None
    assert test_y is not None
    return Content(
        train_x=channels_first(arrays["train_x"], f"{path}: train_x"),
        train_y=train_y,
        test_x=channels_first(arrays["test_x"], f"{path}: test_x"),
        test_y=test_y,
        classes=_classes(arrays, path) or classes or _numbered(train_y, test_y, path),
        train_groups=integers["train_groups"],
        test_groups=integers["test_groups"],
    )


def channels_first(images: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """N×C×H×W uint8 from N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels; where two fit, N×C×H×W is meant."""
    if images.dtype == np.uint8 and images.ndim == 3:
        return images[:, None]
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    expected = "uint8 images N×H×W, N×H×W×C or N×C×H×W of 1 or 3 channels"
    raise UserError(
        f"{what}: expected {expected}, found {images.dtype} {images.shape}; convert them"
    )


def _integers(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[np.int64] | None:
    array = arrays.get(name)
    if array is None:
        return None
    if array.dtype.kind not in "ui" or array.ndim != 1:
        raise UserError(
            f"{path}: expected {name} as a row of whole numbers, found {array.dtype} {array.shape}; mend it"
        )
    return array.astype(np.int64)


def _classes(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    names = arrays.get("classes", np.empty(0, "U1"))
    if names.ndim != 1 or len(names) > MOST_CLASSES:
        raise UserError(
            f"{path}: expected at most {MOST_CLASSES} classes in a row, found {names.shape}; mend them"
        )
    try:
        return tuple(str(name) for name in names)
    except ValueError as error:
        raise UserError(
            f"{path}: expected class names as text, found broken text; write them anew"
        ) from error


def _numbered(train_y: NDArray[np.int64], test_y: NDArray[np.int64], path: Path) -> tuple[str, ...]:
    count = 1 + max(int(labels.max(initial=0)) for labels in (train_y, test_y))
    if count > MOST_CLASSES:
        raise UserError(
            f"{path}: expected labels below {MOST_CLASSES}, found {count - 1}; number the classes from 0"
        )
    return tuple(str(number) for number in range(count))
