"""A dataset as a folder of class folders of PNG or JPEG images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.content import Content, checked
from fedrfq.data.image_decoding import pixels
from fedrfq.data.split import by_content
from fedrfq.errors import UserError

SUFFIXES = {".png", ".jpg", ".jpeg"}
MOST_PIXELS = 1 << 22
MOST_BYTES = 1 << 32
TEST_SHARE = 0.2


def read(folder: Path) -> Content:
    """train/<class>/* and test/<class>/*, or <class>/* alone, of which a fixed fifth a class is for testing."""
    parts = (folder / "train", folder / "test")
    if all(part.is_dir() for part in parts):
        content = _two_parts(*parts)
    else:
        content = _one_part(folder)
    return checked(content, str(folder))


def _two_parts(train: Path, test: Path) -> Content:
    classes = _class_names(train)
    extra = sorted(set(_class_names(test)) - set(classes))
    if extra:
        raise UserError(
            f"{test}: expected only classes that are in train, found {extra[0]!r}; add it to train too"
        )
    train_x, train_y = _images(train, classes)
    test_x, test_y = _images(test, classes)
    if train_x.shape[1:] != test_x.shape[1:]:
        found = f"{train_x.shape[1:]} and {test_x.shape[1:]}"
        raise UserError(
            f"{test}: expected images of the same size and colours as in train, found {found}; convert them"
        )
    return Content(train_x, train_y, test_x, test_y, classes)


def _one_part(folder: Path) -> Content:
    classes = _class_names(folder)
    images, labels = _images(folder, classes)
    train, test = by_content(images, labels, TEST_SHARE, str(folder))
    return Content(images[train], labels[train], images[test], labels[test], classes)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(
        sorted(
            path.name
            for path in folder.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )
    )
    if len(names) < 2:
        raise UserError(
            f"{folder}: expected a folder for each of 2 or more classes, found {len(names)}; add them"
        )
    return names


def _images(folder: Path, classes: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images as N×C×H×W, in the order of class and file name, with their labels."""
    arrays: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        for path in _files(folder / name):
            arrays.append(_same_size(path, pixels(path, MOST_PIXELS, str(path)), arrays))
            labels.append(label)
    if not arrays:
        raise UserError(
            f"{folder}: expected .png or .jpg files in the class folders, found none; add them"
        )
    coloured = any(len(array) == 3 for array in arrays)
    stacked = [
        array.repeat(3, axis=0) if coloured and len(array) == 1 else array for array in arrays
    ]
    return np.stack(stacked), np.array(labels, np.int64)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _same_size(
    path: Path, image: NDArray[np.uint8], earlier: list[NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    if earlier and image.shape[1:] != earlier[0].shape[1:]:
        expected = earlier[0].shape[1:]
        found = image.shape[1:]
        raise UserError(
            f"{path}: expected {expected} pixels like the first image, found {found}; resize it"
        )
    if (len(earlier) + 1) * image.size > MOST_BYTES:
        raise UserError(
            f"{path}: expected at most {MOST_BYTES} bytes of images, found more; use fewer or smaller ones"
        )
    return image
