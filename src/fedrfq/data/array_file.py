"""A dataset as an .npz of arrays: the user's own, in any usual layout, and ours in the cache."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data import npz
from fedrfq.data.class_names import MAX_CLASSES
from fedrfq.data.content import Content, checked
from fedrfq.data.image_form import AS_FOUND, MAX_BYTES, ImageForm, Unfit
from fedrfq.data.label_table import integers, numbered, text
from fedrfq.data.split import TEST_SHARE, Split, by_content
from fedrfq.data.survey import Survey
from fedrfq.errors import UserError, all_of, each_of

REQUIRED = ("train_x", "train_y", "test_x", "test_y")
TRAINING = ("train_x", "train_y")
IMAGES = ("train_x", "test_x")
LABELS: tuple[str, ...] = ("train_y", "test_y")
OPTIONAL = ("classes", "train_groups", "test_groups")


def read(
    path: Path,
    classes: tuple[str, ...] = (),
    form: ImageForm = AS_FOUND,
    partial: bool = False,
    split: Split = by_content,
) -> Content:
    """Return the content of the .npz at `path`; `classes` names them where the file does not.

    Where it has no test part, `split` says which fifth of the samples is for testing. With
    `partial`, the file is of a client that may lack classes, and labels that are numbers may
    leave some out.
    """
    if not path.is_file():
        raise UserError(f"{path}: expected an .npz file, found none; check the path")
    arrays = npz.read(path, REQUIRED + OPTIONAL)
    _check_complete(arrays, path)
    labels = {key: arrays[key] for key in LABELS if key in arrays}
    (names, numbers), images, *groups = all_of(
        lambda: numbered(labels, _class_names(arrays, path) or classes, str(path), partial),
        lambda: _images(arrays, form, path),
        lambda: _groups(arrays, "train_groups", path),
        lambda: _groups(arrays, "test_groups", path),
    )
    has_test = "test_x" in arrays
    content = Content(
        train_x=images["train_x"],
        train_y=numbers["train_y"],
        test_x=images["test_x" if has_test else "train_x"],
        test_y=numbers["test_y" if has_test else "train_y"],
        classes=names,
        train_groups=groups[0],
        test_groups=groups[1 if has_test else 0],
    )
    content = checked(content, str(path), partial)
    if has_test:
        return content
    return _halved(content, split, str(path))


def _check_complete(arrays: Collection[str], path: Path) -> None:
    """Refuse a file that lacks an array, but for all of the test part."""
    needed: tuple[str, ...] = REQUIRED
    if not any(name.startswith("test_") for name in arrays):
        needed = TRAINING
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise UserError(
            f"{path}: expected the arrays {', '.join(REQUIRED)}, or {' and '.join(TRAINING)} alone,"
            f" found no {' and no '.join(missing)}; add what is missing"
        )


def _halved(content: Content, split: Split, what: str) -> Content:
    """Return the training samples in two parts, the second of which is tested on."""
    train, test = split(content.train_x, content.train_y, TEST_SHARE, what)
    owners = content.train_groups
    return replace(
        content,
        train_x=content.train_x[train],
        train_y=content.train_y[train],
        test_x=content.train_x[test],
        test_y=content.train_y[test],
        train_groups=None if owners is None else owners[train],
        test_groups=None if owners is None else owners[test],
    )


def _images(
    arrays: dict[str, NDArray[Any]], form: ImageForm, path: Path
) -> dict[str, NDArray[np.uint8]]:
    """Return the images of both parts in the form: its own shape, or that of the first one."""
    found = _layouts(arrays, path)
    try:
        return {key: _fitted(images, form, f"{path}: {key}") for key, images in found.items()}
    except Unfit as error:
        raise Survey.of(_named(found), form).fault(str(path)) from error


def survey(path: Path, form: ImageForm) -> Survey:
    """Return what all images of an .npz are like, before they are made alike."""
    arrays = npz.read(path, IMAGES)
    return Survey.of(_named(_layouts(arrays, path)), form)


def _layouts(arrays: dict[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
    """Return the images of the parts that are there as N×C×H×W, with a number for each pixel."""
    found = {key: channels_first(arrays[key], f"{path}: {key}") for key in IMAGES if key in arrays}
    each_of(lambda key, images: check_samples(images, f"{path}: {key}"), found)
    return found


def _named(parts: dict[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    for key, images in parts.items():
        for number, image in enumerate(images):
            yield f"{key}[{number}]", image


def check_samples(numbers: NDArray[Any], what: str) -> None:
    """Raise UserError if samples have values that are no numbers."""
    if numbers.dtype.kind != "f":
        return
    bad = np.unique(np.argwhere(~np.isfinite(numbers))[:, 0])
    if len(bad):
        raise UserError(
            f"{what}: found values that are NaN, infinite or too large in {len(bad)} of "
            f"{len(numbers)} samples, first in sample {bad[0]}; leave these samples out, or fill "
            "in the values"
        )


def _fitted(values: NDArray[Any], form: ImageForm, what: str) -> NDArray[np.uint8]:
    images = form.eight_bits(values, what)
    if form.shape is None or images.shape[1:] == form.shape or not len(images):
        return images
    if len(images) * math.prod(form.shape) > MAX_BYTES:
        raise UserError(
            f"{what}: expected at most {MAX_BYTES} bytes of images, found more once they are "
            "resized; use fewer images"
        )
    return np.stack([form.fitted(image, what) for image in images])


def channels_first(images: NDArray[Any], what: str) -> NDArray[Any]:
    """Return N×C×H×W from N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels.

    Where two layouts fit, N×C×H×W is meant.
    """
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise UserError(
        f"{what}: expected images N×H×W, N×H×W×C or N×C×H×W of 1 or 3 channels, "
        f"found {images.dtype} {images.shape}; convert them"
    )


def _groups(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[np.int64] | None:
    if name not in arrays:
        return None
    return integers(arrays[name], f"{path}: {name}")


def _class_names(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    names = arrays.get("classes", np.empty(0, "U1"))
    if names.ndim != 1 or len(names) > MAX_CLASSES:
        raise UserError(
            f"{path}: expected a one-dimensional array of at most {MAX_CLASSES} classes, "
            f"found shape {names.shape}; fix `classes`"
        )
    return tuple(text(name, str(path)) for name in names)
