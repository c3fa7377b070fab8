"""Labels as a user's file has them, numbers or names, turned into names and numbers from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.class_names import MAX_CLASSES
from fedrfq.data.content import Labels
from fedrfq.errors import UserError, each_of

# Numbers that an error shows before it breaks off.
_MAX_SHOWN = 8


def numbered(
    labels: dict[str, NDArray[Any]],
    names: tuple[str, ...],
    what: str,
    partial: bool = False,
) -> tuple[tuple[str, ...], dict[str, Labels]]:
    """Return the names of the classes, and the labels as their numbers from 0.

    `labels` has arrays by name, for errors. With `names`, numbers count from the first of them.
    Without, each number is its own name: `partial` labels may leave some out, as they are matched
    by name later.
    """
    kinds = {array.dtype.kind for array in labels.values()}
    if kinds == {"U"}:
        return _from_text(labels, names, what)
    numbers = each_of(lambda key, array: integers(array, f"{what}: {key}"), labels)
    if names:
        return names, numbers
    found = np.unique(np.concatenate(list(numbers.values())))
    if partial:
        _check_start(found, what)
    else:
        check_run(found, what)
    # Checked before a name is made for each: a hostile file could ask for billions.
    _check_number(len(found), what)
    classes = tuple(str(number) for number in found)
    return classes, {key: np.searchsorted(found, array) for key, array in numbers.items()}


def _from_text(
    labels: dict[str, NDArray[Any]], names: tuple[str, ...], what: str
) -> tuple[tuple[str, ...], dict[str, Labels]]:
    arrays = each_of(lambda key, array: _flat(array, f"{what}: {key}"), labels)
    found = {text(name, what) for array in arrays.values() for name in np.unique(array)}
    _check_number(len(found), what)
    classes = names or tuple(sorted(found))
    foreign = sorted(found - set(classes))
    if foreign:
        raise UserError(
            f"{what}: expected labels that are in `classes`, found {foreign[0]!r:.100}; "
            "add it there, or leave `classes` out"
        )
    place = {name: number for number, name in enumerate(classes)}
    return classes, {
        key: np.array([place[str(name)] for name in array], np.int64)
        for key, array in arrays.items()
    }


def text(name: Any, what: str) -> str:
    """Return one text of an array; a file may hold what is no text."""
    try:
        return str(name)
    except ValueError as error:
        raise UserError(
            f"{what}: expected class names as text, found text that cannot be decoded; "
            "write them again"
        ) from error


def integers(array: NDArray[Any], what: str) -> Labels:
    """Return labels or groups as whole numbers; other forms are refused with their remedy."""
    _check_no_column(array, what)
    key = what.rpartition(" ")[2]
    if array.ndim == 2 and array.dtype.kind in "uifb" and _is_one_hot(array):
        raise UserError(
            f"{what}: expected one label for each image, found a row of {array.shape[1]} for each "
            f"with a single 1 in it (one-hot); store {key}.argmax(1)"
        )
    if array.dtype.kind == "f" and array.ndim == 1 and (array == np.rint(array)).all():
        raise UserError(
            f"{what}: expected whole numbers, found {array.dtype}; store {key}.astype(int)"
        )
    if array.dtype.kind not in "ui":
        raise UserError(
            f"{what}: expected a one-dimensional array of integers, "
            f"found {array.dtype} {array.shape}; convert it"
        )
    return _flat(array, what).astype(np.int64)


def _flat(array: NDArray[Any], what: str) -> NDArray[Any]:
    _check_no_column(array, what)
    if array.ndim != 1:
        raise UserError(
            f"{what}: expected a one-dimensional array of integers or names, "
            f"found {array.dtype} {array.shape}; convert it"
        )
    return array


def _check_no_column(array: NDArray[Any], what: str) -> None:
    if array.ndim == 2 and array.shape[1] == 1:
        raise UserError(
            f"{what}: expected a one-dimensional array, found one of {len(array)}×1; store"
            f" {what.rpartition(' ')[2]}.ravel()"
        )


def _is_one_hot(array: NDArray[Any]) -> bool:
    is_binary = ((array == 0) | (array == 1)).all()
    return bool(is_binary and (array.sum(1) == 1).all())


def check_run(found: Labels, what: str) -> None:
    """Check that labels without names are 0, 1, 2, … with none left out."""
    largest = int(found.max(initial=0))
    if largest >= MAX_CLASSES:
        raise UserError(
            f"{what}: expected labels below {MAX_CLASSES}, found {largest}; "
            "number the classes from 0"
        )
    if (found == np.arange(len(found))).all():
        return
    if (found == np.arange(1, len(found) + 1)).all():
        raise UserError(
            f"{what}: expected labels from 0, found labels from 1 (1 to {largest}); subtract 1 from"
            " train_y and test_y, or name the labels 0, 1, 2, … in the array `classes`"
        )
    shown = ", ".join(map(str, found[:_MAX_SHOWN]))
    if len(found) > _MAX_SHOWN:
        shown += ", …"
    raise UserError(
        f"{what}: expected labels 0, 1, 2, … with none left out, found {shown}; number the classes"
        " anew (numpy.unique(y, return_inverse=True)[1]), or store their names as labels"
    )


def _check_start(found: Labels, what: str) -> None:
    """Refuse labels that may count from 1 where those of others count from 0."""
    if len(found) > 1 and (found == np.arange(1, len(found) + 1)).all():
        raise UserError(
            f"{what}: found labels from 1 (1 to {len(found)}) and no names for them. If they count "
            "from 1, subtract 1 from train_y and test_y; if there are no samples of class 0, say so"
            " by storing the array `classes` with the name of each label from 0 on"
        )


def _check_number(classes: int, what: str) -> None:
    if classes > MAX_CLASSES:
        raise UserError(
            f"{what}: expected at most {MAX_CLASSES} classes, found {classes}; check the labels"
        )
