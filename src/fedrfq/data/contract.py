"""The data contract of a federation: what every client's samples must be.

A federation's founder needs no data for it, and it names nobody's folders. Each client's samples
are mapped to the agreed classes by their names, whatever their numbers or order.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedrfq.data.class_names import check_class_names
from fedrfq.data.image_form import ImageForm
from fedrfq.errors import UserError, all_of, did_you_mean

# The `data.name` of an experiment whose clients bring samples of their own.
CONTRACT = "contract"
# How brightness, from 0 to 1, becomes a model's input: (brightness − MEAN) / STD.
MEAN = 0.5
STD = 0.25
# Class names that an error lists before the rest is only counted.
_MAX_LISTED = 10
# Names of fewer letters are too often one letter apart.
_MIN_MISSPELT = 3


@dataclass(frozen=True)
class Contract:
    """The ordered names of the classes, the form of the images, and how a model sees them."""

    classes: tuple[str, ...]
    form: ImageForm
    mean: float = MEAN
    std: float = STD

    def __post_init__(self) -> None:
        check_class_names(self.classes, "the data contract")
        if any(name != _normal(name) for name in self.classes):
            raise UserError("the data contract: expected class names in Unicode's form NFC")
        if self.form.shape is None:
            raise UserError("the data contract: expected a shape, found none; give --shape 1x28x28")
        if not (0 <= self.mean <= 1 and 0 < self.std <= 1):
            raise UserError(
                "the data contract: expected a mean from 0 to 1 and a deviation above 0, found"
                f" {self.mean} and {self.std}"
            )

    @staticmethod
    def of(classes: Sequence[str], form: ImageForm, **more: float) -> Contract:
        """Return the contract of class names as people write them, and of a form."""
        return Contract(tuple(map(_normal, classes)), replace(form, chosen="contract"), **more)

    @staticmethod
    def read(table: Mapping[str, Any]) -> Contract:
        """Return the contract of a table that `table` returned; anything else is an error."""
        settings = {key: table[key] for key in ("shape", "window", "resize", "recolour")}
        for key, value in settings.items():
            if type(value) is not (bool if key in ("resize", "recolour") else str):
                raise TypeError(f"contract.{key} = {value!r}")
        numbers = {key: table[key] for key in ("mean", "std")}
        if any(type(value) is not float for value in numbers.values()):
            raise TypeError("contract.mean and contract.std must be numbers")
        return Contract.of(table["classes"], ImageForm.of(**settings), **numbers)

    def table(self) -> dict[str, Any]:
        """Return the contract as federation.toml holds it."""
        return {
            "classes": list(self.classes),
            **self.form.settings(),
            "mean": self.mean,
            "std": self.std,
        }

    def about(self) -> str:
        """Describe the contract in one line."""
        form = self.form.settings()
        parts = [f"{len(self.classes)} classes ({listed(self.classes)})", f"images {form['shape']}"]
        if self.form.window is not None:
            parts.append(f"window {form['window']}")
        if self.form.resize:
            parts.append("other sizes are resized")
        if self.form.recolour:
            parts.append("colours are converted")
        return ", ".join(parts)

    def near_names(self) -> tuple[str, str] | None:
        """Return two names of which one may be the other one misspelt, or None."""
        first_with: dict[str, str] = {}
        for name in self.classes:
            for spelling in _misspelt(name):
                if first_with.setdefault(spelling, name) != name:
                    return first_with[spelling], name
        return None

    def places(self, classes: Sequence[str], what: str) -> list[int]:
        """Return the number here of each of a client's classes, matched by name."""
        found = all_of(*(partial(self._place, name, what) for name in classes))
        if len(set(found)) < len(found):
            raise UserError(f"{what}: two of its class names are the same; rename one of them")
        return found

    def _place(self, name: str, what: str) -> int:
        normal = _normal(name)
        if normal in self.classes:
            return self.classes.index(normal)
        guess = did_you_mean(normal, self.classes)
        remedy = "rename or remove it"
        if name.isdecimal():
            remedy = (
                "labels are matched by name: write names instead of numbers, or add the array"
                " `classes` with each label's name to an .npz"
            )
        raise UserError(
            f"{what}: its class {name!r:.100} is none of the federation's"
            f" ({listed(self.classes)}){guess}; {remedy}"
        )

    def missing(self, labels: Sequence[int]) -> list[str]:
        """Return the classes that have none of these labels."""
        present = set(labels)
        return [name for number, name in enumerate(self.classes) if number not in present]


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(names[:_MAX_LISTED])
    if len(names) > _MAX_LISTED:
        return f"{text} and {len(names) - _MAX_LISTED} more"
    return text


def _misspelt(name: str) -> set[str]:
    """Return a name without each of its letters in turn; two that differ by a slip share one.

    Digits stay: names that differ in them are a series, such as stage-1 and stage-2.
    """
    plain = name.casefold()
    if len(plain) < _MIN_MISSPELT:
        return {plain}
    letters = [place for place, letter in enumerate(plain) if not letter.isdecimal()]
    return {plain} | {plain[:place] + plain[place + 1 :] for place in letters}


def _normal(name: str) -> str:
    # Some systems store the umlaut of a folder's name as a letter and a mark.
    return unicodedata.normalize("NFC", name)
