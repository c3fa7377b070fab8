"""The arrays of a dataset, checked, and the one hash that identifies them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.class_names import check_class_names
from fedrfq.errors import UserError

Images = NDArray[Any]  # uint8 or, if given as Python objects, float32
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Content:
    """The arrays of a dataset and the names of its classes.

    Images are uint8 or float32 in N×C×H×W, labels int64 from 0 to len(classes) − 1, groups int64 or
    None.
    """

    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    classes: tuple[str, ...]
    train_groups: Labels | None = None
    test_groups: Labels | None = None


def sha256(content: Content) -> str:
    """Return the hash of the arrays and class names.

    It covers train_x, train_y, test_x, test_y, classes, train_groups and test_groups, in this
    order. Each array present adds a line "name dtype shape" and then its bytes in C order,
    little-endian; the classes add the line "classes count" and then their names in UTF-8, each
    ended by a line feed.
    """
    # This format is pinned by the hashes of all known datasets: it must never change.
    digest = hashlib.sha256()
    for name in ("train_x", "train_y", "test_x", "test_y"):
        _add(digest, name, getattr(content, name))
    digest.update(f"classes {len(content.classes)}\n".encode())
    digest.update("".join(f"{name}\n" for name in content.classes).encode())
    for name in ("train_groups", "test_groups"):
        _add(digest, name, getattr(content, name))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, array: NDArray[Any] | None) -> None:
    if array is None:
        return
    # The bytes must not depend on the machine or on how the array lies in memory.
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(f"{name} {little.dtype.str} {'x'.join(map(str, little.shape))}\n".encode())
    digest.update(little.reshape(-1).view(np.uint8).data)


def checked(content: Content, what: str, partial: bool = False) -> Content:
    """Return the content C-contiguous, after checking its shapes, counts, names and labels.

    `what` names the data in the UserError of a failed check. `partial` content is of a client that
    may lack classes, even all but one.
    """
    check_class_names(content.classes, what, least=1 if partial else 2)
    train_shape = content.train_x.shape[1:]
    test_shape = content.test_x.shape[1:]
    if train_shape != test_shape:
        raise UserError(
            f"{what}: expected train and test images of the same shape, "
            f"found {train_shape} and {test_shape}; convert one of them"
        )
    for part in ("train", "test"):
        _check_part(content, part, what)
    if (content.train_groups is None) != (content.test_groups is None):
        raise UserError(
            f"{what}: expected groups for both train and test, found only one of them; "
            "add the other or drop both"
        )
    # Training reads single images: a transposed view would gather their bytes from everywhere.
    return replace(
        content,
        train_x=np.ascontiguousarray(content.train_x),
        test_x=np.ascontiguousarray(content.test_x),
    )


def _check_part(content: Content, part: str, what: str) -> None:
    images = getattr(content, f"{part}_x")
    labels = getattr(content, f"{part}_y")
    groups = getattr(content, f"{part}_groups")
    if images.ndim != 4 or images.dtype not in (np.uint8, np.float32) or 0 in images.shape:
        raise UserError(
            f"{what}: expected {part}_x as a non-empty uint8 array N×C×H×W, "
            f"found {images.dtype} {images.shape}; convert the images"
        )
    for name, array in ((f"{part}_y", labels), (f"{part}_groups", groups)):
        if array is not None and array.shape != (len(images),):
            raise UserError(
                f"{what}: expected {len(images)} entries in {name}, one for each image, "
                f"found shape {array.shape}; fix {name}"
            )
    largest = len(content.classes) - 1
    if labels.min() < 0 or labels.max() > largest:
        raise UserError(
            f"{what}: expected {part} labels 0 to {largest}, "
            f"found {labels.min()} to {labels.max()}; number the classes from 0 to {largest}"
        )
