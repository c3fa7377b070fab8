"""What pictures are like before any of them is converted.

One picture that differs says little: it may be the odd one, or the first of many. So an error
counts them all, and proposes what suits most of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.image_form import ImageForm, check_finite, is_grey, suggested_window
from fedrfq.errors import UserError

# Sizes that an error lists before the rest is only counted.
_MAX_LISTED = 4
_KINDS = {1: "grey", 3: "colour"}


class _Picture(NamedTuple):
    """What a picture is called, its channels, whether it is grey, and its width × height."""

    what: str
    channels: int
    grey: bool
    size: tuple[int, int]


@dataclass
class Survey:
    """What pictures are like: `deep` counts the pixels of more than 8 bits, from `low` to `high`.

    `beyond` of these lie outside the form's window, if it has one.
    """

    form: ImageForm
    pictures: list[_Picture]
    types: set[str]
    low: float = np.inf
    high: float = -np.inf
    deep: int = 0
    beyond: int = 0

    @staticmethod
    def of(pictures: Iterable[tuple[str, NDArray[Any]]], form: ImageForm) -> Survey:
        """Return the survey of pictures C×H×W, each with what errors call it."""
        survey = Survey(form, [], set())
        for what, values in pictures:
            size = values.shape[2], values.shape[1]
            survey.pictures.append(_Picture(what, len(values), is_grey(values), size))
            if values.dtype != np.uint8:
                survey._add_deep(values, what)
        return survey

    def _add_deep(self, values: NDArray[Any], what: str) -> None:
        check_finite(values, what)
        self.types.add(str(values.dtype))
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))
        self.deep += values.size
        if self.form.window is not None:
            black, white = self.form.window
            self.beyond += int(np.count_nonzero((values < black) | (values > white)))

    @property
    def share_beyond(self) -> float:
        """Return the share of the pixels of more than 8 bits that the window cuts off."""
        return self.beyond / max(1, self.deep)

    def fault(self, what: str) -> UserError:
        """Return the error of pictures that are not as the form says, or not like each other."""
        kinds = self._kinds()
        sizes = [f"of {width}×{height}" for width, height in self._sizes()]
        channels, height, width = self._shape(kinds)
        kind, size = _KINDS[channels], f"of {width}×{height}"
        found = []
        settings: dict[str, object] = {}
        if set(kinds) != {kind} and not self.form.recolour:
            found.append(self._counted(kinds, kind))
            settings["recolour"] = True
        if set(sizes) != {size} and not self.form.resize:
            found.append(f"{self._counted(sizes, size)} pixels, width × height")
            settings["resize"] = True
        if settings:
            settings = {"shape": f"{channels}x{height}x{width}", **settings}
        if self.types and self.form.window is None:
            found.append(f"{' and '.join(sorted(self.types))} from {self.low:g} to {self.high:g}")
            settings["window"] = suggested_window(self.low, self.high)
        return UserError(
            f"{what}: expected pictures {self._expected(kind, size)}, found {'; '.join(found)};"
            f" convert those that differ, {self.form.remedy(**settings)}"
        )

    def _expected(self, kind: str, size: str) -> str:
        alike = "that are alike"
        if self.form.shape is not None:
            alike = f"in {kind} {size} pixels"
        if self.types and self.form.window is None:
            return f"{alike}, of 8 bits, or to be told which value is black and which is white"
        return alike

    def _kinds(self) -> list[str]:
        """Return the kind of each picture; a colour file of a grey one counts as either."""
        grey = any(picture.channels == 1 for picture in self.pictures)
        if self.form.shape is not None:
            grey = self.form.shape[0] == 1
        return [
            _KINDS[1 if picture.channels == 1 or (grey and picture.grey) else 3]
            for picture in self.pictures
        ]

    def _sizes(self) -> list[tuple[int, int]]:
        return [picture.size for picture in self.pictures]

    def _shape(self, kinds: Sequence[str]) -> tuple[int, int, int]:
        """Return the shape of the form or, without one, what most pictures have."""
        if self.form.shape is not None:
            return self.form.shape
        (((width, height), _),) = Counter(self._sizes()).most_common(1)
        ((kind, _),) = Counter(kinds).most_common(1)
        return 1 if kind == _KINDS[1] else 3, height, width

    def _counted(self, labels: Sequence[str], expected: str) -> str:
        """Return how often each label occurs, with an example of each that is not expected."""
        examples: dict[str, str] = {}
        for label, picture in zip(labels, self.pictures, strict=True):
            examples.setdefault(label, f" ({picture.what})")
        examples[expected] = ""
        counts = Counter(labels).most_common()
        texts = [f"{count} {label}{examples[label]}" for label, count in counts[:_MAX_LISTED]]
        if len(counts) > _MAX_LISTED:
            texts.append(f"{len(counts) - _MAX_LISTED} others")
        return ", ".join(texts)
