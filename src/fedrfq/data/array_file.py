"""A dataset as an .npz of arrays: the user's own, in any usual layout, and ours in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data import npz
from fedrfq.data.content import MAX_CLASSES, Content, checked
from fedrfq.errors import UserError

REQUIRED = ("train_x", "train_y", "test_x", "test_y")
OPTIONAL = ("classes", "train_groups", "test_groups")


def read(path: Path, classes: tuple[str, ...] | None = None) -> Content:
    """Return the content of the .npz at `path`; `classes` names them where the file does not."""
    if not path.is_file():
        raise UserError(f"{path}: expected an .npz file, found none; check the path")
    arrays = npz.read(path, REQUIRED + OPTIONAL)
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise UserError(
            f"{path}: expected the arrays {', '.join(REQUIRED)}, found no {missing[0]}; add it"
        )
    return checked(_content(arrays, classes, path), str(path))


def _content(
    arrays: dict[str, NDArray[Any]], classes: tuple[str, ...] | None, path: Path
) -> Content:
    train_y = _integers(arrays["train_y"], f"{path}: train_y")
    test_y = _integers(arrays["test_y"], f"{path}: test_y")
    return Content(
        train_x=channels_first(arrays["train_x"], f"{path}: train_x"),
        train_y=train_y,
        test_x=channels_first(arrays["test_x"], f"{path}: test_x"),
        test_y=test_y,
        classes=_class_names(arrays, path) or classes or _numbered(train_y, test_y, path),
        train_groups=_groups(arrays, "train_groups", path),
        test_groups=_groups(arrays, "test_groups", path),
    )


def channels_first(images: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Return N×C×H×W uint8 from N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels.

    Where two layouts fit, N×C×H×W is meant.
    """
    if images.dtype == np.uint8 and images.ndim == 3:
        return images[:, None]
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise UserError(
        f"{what}: expected uint8 images N×H×W, N×H×W×C or N×C×H×W of 1 or 3 channels, "
        f"found {images.dtype} {images.shape}; convert them"
    )


def _groups(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[np.int64] | None:
    if name not in arrays:
        return None
    return _integers(arrays[name], f"{path}: {name}")


def _integers(array: NDArray[Any], what: str) -> NDArray[np.int64]:
    if array.dtype.kind not in "ui" or array.ndim != 1:
        raise UserError(
            f"{what}: expected a one-dimensional array of integers, "
            f"found {array.dtype} {array.shape}; convert it"
        )
    return array.astype(np.int64)


def _class_names(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    names = arrays.get("classes", np.empty(0, "U1"))
    if names.ndim != 1 or len(names) > MAX_CLASSES:
        raise UserError(
            f"{path}: expected a one-dimensional array of at most {MAX_CLASSES} classes, "
            f"found shape {names.shape}; fix `classes`"
        )
    try:
        return tuple(str(name) for name in names)
    except ValueError as error:
        raise UserError(
            f"{path}: expected class names as text, found text that cannot be decoded; "
            "write `classes` again"
        ) from error


def _numbered(train_y: NDArray[np.int64], test_y: NDArray[np.int64], path: Path) -> tuple[str, ...]:
    """Return the class names "0", "1", … up to the largest label."""
    largest = max(int(labels.max(initial=0)) for labels in (train_y, test_y))
    # Checked before a name is made for each: a hostile label could ask for billions.
    if largest >= MAX_CLASSES:
        raise UserError(
            f"{path}: expected labels below {MAX_CLASSES}, found {largest}; "
            "number the classes from 0"
        )
    return tuple(str(number) for number in range(largest + 1))
