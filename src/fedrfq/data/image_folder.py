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
# Of one image, and of all images together: they are held in memory.
MAX_PIXELS = 1 << 22
MAX_BYTES = 1 << 32
TEST_SHARE = 0.2


def read(folder: Path) -> Content:
    """Return the dataset in train/<class>/* and test/<class>/*, or in <class>/* alone.

    In the latter case a fixed fifth of each class is for testing.
    """
    train = folder / "train"
    test = folder / "test"
    if train.is_dir() and test.is_dir():
        content = _two_parts(train, test)
    else:
        content = _one_part(folder)
    return checked(content, str(folder))


def _two_parts(train: Path, test: Path) -> Content:
    # A class without test images is fine, one without training images is not.
    classes = _class_names(train)
    extra = sorted(set(_class_names(test)) - set(classes))
    if extra:
        raise UserError(
            f"{test}: expected only classes that are in train, found {extra[0]!r}; "
            "add that class to train or remove it from test"
        )
    train_x, train_y = _images(train, classes)
    test_x, test_y = _images(test, classes)
    if train_x.shape[1:] != test_x.shape[1:]:
        raise UserError(
            f"{test}: expected images of the same size and colours as in train, "
            f"found {train_x.shape[1:]} in train and {test_x.shape[1:]} in test; convert them"
        )
    return Content(train_x, train_y, test_x, test_y, classes)


def _one_part(folder: Path) -> Content:
    classes = _class_names(folder)
    images, labels = _images(folder, classes)
    train, test = by_content(images, labels, TEST_SHARE, str(folder))
    return Content(images[train], labels[train], images[test], labels[test], classes)


def _class_names(folder: Path) -> tuple[str, ...]:
    # Hidden folders are some program's, such as .ipynb_checkpoints.
    subfolders = (path for path in folder.iterdir() if path.is_dir())
    names = tuple(sorted(path.name for path in subfolders if not path.name.startswith(".")))
    if len(names) < 2:
        raise UserError(
            f"{folder}: expected a subfolder for each of 2 or more classes, found {len(names)}; "
            "add a folder of images for each class"
        )
    return names


def _images(folder: Path, classes: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all images as N×C×H×W, ordered by class and file name, and their labels."""
    arrays: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        for path in _image_files(folder / name):
            image = pixels(path, MAX_PIXELS, str(path))
            _check_size(path, image, arrays)
            arrays.append(image)
            labels.append(label)
    if not arrays:
        raise UserError(
            f"{folder}: expected .png or .jpg files in the class folders, found none; add some"
        )
    # One colour image makes all of them three-channel.
    channels = max(len(array) for array in arrays)
    stacked = [np.broadcast_to(array, (channels, *array.shape[1:])) for array in arrays]
    return np.stack(stacked), np.array(labels, np.int64)


def _image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _check_size(path: Path, image: NDArray[np.uint8], earlier: list[NDArray[np.uint8]]) -> None:
    if earlier and image.shape[1:] != earlier[0].shape[1:]:
        raise UserError(
            f"{path}: expected {earlier[0].shape[1:]} pixels (height, width) like the first image, "
            f"found {image.shape[1:]}; resize it"
        )
    if (len(earlier) + 1) * image.size > MAX_BYTES:
        raise UserError(
            f"{path}: expected at most {MAX_BYTES} bytes of images in all, found more; "
            "use fewer or smaller images"
        )
