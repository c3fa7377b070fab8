"""Datasets made of objects in memory: numpy arrays, torch tensors, torch datasets.

Images become N×C×H×W. Whole numbers from 0 to 255 are kept as uint8. Anything else is kept as
float32, times 255, because a dataset's mean and deviation are of values divided by 255: models then
see the given values, normalised by channel. Rows of F numbers are images of F channels and one
pixel, so that every number is normalised by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.array_file import check_samples
from fedrfq.data.content import Content, checked
from fedrfq.data.dataset import Dataset
from fedrfq.data.label_table import check_run
from fedrfq.data.library import of_content
from fedrfq.data.split import TEST_SHARE, by_content
from fedrfq.errors import UserError, all_of

Array = NDArray[Any]


def from_arrays(
    x: Any,
    y: Any,
    test: tuple[Any, Any] | None,
    classes: Sequence[str] | None,
    groups: tuple[Any, Any],
    name: str,
    origin: str = "",
) -> Dataset:
    """Return the dataset of arrays; see `Dataset.from_arrays`."""
    given_x, given_y, given_groups = [x], [y], [groups[0]]
    if test is not None:
        given_x.append(test[0])
        given_y.append(test[1])
        given_groups.append(groups[1])
    images, (names, labels), owners = all_of(
        lambda: images_of(given_x, name),
        lambda: _numbered(given_y, classes, name),
        lambda: _owners(given_groups, name),
    )
    if test is None:
        _check_lengths(images[0], labels[0], owners[0], name)
        halves = by_content(images[0], labels[0], TEST_SHARE, name)
        images, labels = ([part[0][half] for half in halves] for part in (images, labels))
        owners = [None if owners[0] is None else owners[0][half] for half in halves]
    content = Content(images[0], labels[0], images[1], labels[1], names, *owners)
    return of_content(name, checked(content, name), origin)


def from_torch(dataset: Any, test: Any, classes: Sequence[str] | None, name: str) -> Dataset:
    """Return the dataset of a torch `Dataset`; see `Dataset.from_torch`."""
    if classes is None:
        classes = getattr(dataset, "classes", None)
    x, y = _items(dataset, name)
    pair = None
    if test is not None:
        pair = _items(test, name)
    return from_arrays(x, y, pair, classes, (None, None), name)


def _items(dataset: Any, name: str) -> tuple[Array, Array]:
    """Return all images and all labels of a torch dataset."""
    try:
        images, labels = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
        return np.stack([_array(image) for image in images]), np.array(list(map(int, labels)))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name}: expected a dataset with a length whose items are pairs of an image, all of "
            f"one size, and a label; found: {error}"
        ) from error


def images_of(given: Sequence[Any], name: str, *, as_numbers: bool = False) -> list[Array]:
    """Return arrays of images as N×C×H×W; with `as_numbers`, none of them are taken for pixels."""
    arrays = [_array(x) for x in given]
    for array in arrays:
        if 0 in array.shape:
            raise UserError(f"{name}: expected samples, found none: the shape is {array.shape}")
        if array.dtype.kind not in "uifb":
            raise UserError(
                f"{name}: expected images or rows as an array of numbers, "
                f"found {array.dtype} {array.shape}; convert them"
            )
    pixels = [_are_pixels(array) and not as_numbers for array in arrays]
    if any(pixels) and not all(pixels):
        raise UserError(
            f"{name}: expected training and test images of one kind, found pixels from 0 to 255 "
            "in one and other numbers in the other; convert one of them"
        )
    if all(pixels):
        return [_channels_first(array.astype(np.uint8), name) for array in arrays]
    floats = [array.astype(np.float32) * np.float32(255) for array in arrays]
    for array in floats:
        check_samples(array, name)
    return [_channels_first(array, name) for array in floats]


def _array(x: Any) -> Array:
    """Return a numpy array of what numpy or torch holds, or of a picture."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        # numpy has no bfloat16.
        x = (x.float() if x.is_floating_point() else x).numpy()
    try:
        return np.asarray(x)
    except ValueError as error:
        raise UserError("expected samples that are all of one size, found several sizes") from error


def _are_pixels(array: Array) -> bool:
    """Return whether these are pictures of whole numbers from 0 to 255; rows are numbers."""
    if array.ndim < 3 or array.dtype.kind not in "ui":
        return False
    return bool(array.min() >= 0 and array.max() <= 255)


def _channels_first(images: Array, name: str) -> Array:
    """Return N×C×H×W from N×F, N×H×W, N×H×W×C or N×C×H×W."""
    if images.ndim == 2:
        return images[:, :, None, None]
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and _has_channels_last(*images.shape[1:]):
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4:
        return images
    raise UserError(
        f"{name}: expected images N×H×W, N×H×W×C or N×C×H×W, or rows N×F, "
        f"found shape {images.shape}; reshape them"
    )


def _has_channels_last(first: int, second: int, last: int) -> bool:
    """Return whether images of this shape are H×W×C: grey, RGB, or squares of few channels."""
    if first in (1, 3) or last in (1, 3):
        return first not in (1, 3)
    return first == second > last


def _numbered(
    given: Sequence[Any], classes: Sequence[str] | None, name: str
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the classes' names, and labels that number them."""
    arrays = [_array(y) for y in given]
    for array in arrays:
        if array.ndim != 1 or array.dtype.kind not in "uibUO":
            raise UserError(
                f"{name}: expected one label for each sample, a whole number or text, "
                f"found {array.dtype} {array.shape}; {_conversion(array)}"
            )
        _check_present(array, "label", name)
    if all(array.dtype.kind in "ui" for array in arrays):
        if classes is None:
            check_run(np.unique(np.concatenate(arrays)), name)
            classes = [str(number) for number in range(int(arrays[0].max(initial=0)) + 1)]
        return tuple(map(str, classes)), [array.astype(np.int64) for array in arrays]
    texts = [array.astype(str) for array in arrays]
    found = tuple(map(str, classes if classes is not None else np.unique(texts[0])))
    return found, [_places(text, found, name) for text in texts]


def _conversion(labels: Array) -> str:
    """Return what makes labels of these."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "give y.ravel()"
    if labels.ndim == 2:
        return "if they are one-hot, give y.argmax(1)"
    return "give y.astype(str)" if labels.dtype.kind == "S" else "give y.astype(int)"


def _places(labels: Array, names: tuple[str, ...], name: str) -> NDArray[np.int64]:
    """Return the number of each label's class."""
    places = {label: place for place, label in enumerate(names)}
    unknown = sorted(set(labels.tolist()) - set(places))
    if unknown:
        raise UserError(
            f"{name}: the label {unknown[0]!r:.100} is none of the classes; "
            "add it to `classes`, or remove these samples"
        )
    return np.array([places[label] for label in labels.tolist()], np.int64)


def _owners(given: Sequence[Any], name: str) -> list[NDArray[np.int64] | None]:
    """Return the groups as numbers: equal ones in training and test are one group."""
    arrays = [None if groups is None else _array(groups) for groups in given]
    known = [array for array in arrays if array is not None]
    if not known:
        return [None for _ in arrays]
    if any(array.ndim != 1 for array in known):
        raise UserError(f"{name}: expected one group for each sample; reshape `groups`")
    for array in known:
        _check_present(array, "group", name)
    values = np.unique(np.concatenate(known).astype(str))
    return [
        None if array is None else np.searchsorted(values, array.astype(str)).astype(np.int64)
        for array in arrays
    ]


def _check_present(values: Array, what: str, name: str) -> None:
    """Refuse labels or groups that are missing, which would be one more class or group."""
    for i, value in enumerate(values.tolist()):
        # NaN is the only number that is not itself.
        if value is None or value != value:
            raise UserError(
                f"{name}: expected a {what} for each sample, found {value} for sample {i}; "
                "leave such samples out"
            )


def _check_lengths(images: Array, labels: Array, owners: Array | None, name: str) -> None:
    """Refuse labels or groups that are not as many as the images, before they are split."""
    for what, array in (("labels", labels), ("groups", owners)):
        if array is not None and len(array) != len(images):
            raise UserError(
                f"{name}: expected {len(images)} {what}, one for each sample, found {len(array)}"
            )
