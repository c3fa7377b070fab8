"""How pictures are made alike: one shape for all, and values from black to white.

Nothing is converted that the form does not name: a picture of another size or colour is refused,
and so are values of more than 8 bits, with the setting that would convert them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError

Shape = tuple[int, int, int]
# By settings of an experiment, by options of a command, or by the members of a federation.
Chosen = Literal["settings", "options", "contract"]
# Of one picture: it is held in memory.
MAX_PIXELS = 1 << 22
# Of all pictures of a dataset together.
MAX_BYTES = 1 << 32
_SHAPE = re.compile(r"([13])[x×]([1-9][0-9]{0,6})[x×]([1-9][0-9]{0,6})")
# Values that cameras and scanners give for white, by their bits.
_WHITES = (255, 1023, 4095, 16383, 65535)
# Pictures whose values are converted at a time, to bound the copies in floating point.
_CHUNK = 256


class Unfit(UserError):
    """A picture is not as the form says, and nothing says that it may be converted."""


@dataclass(frozen=True)
class ImageForm:
    """What every picture of a dataset is to be.

    Without a shape, the first picture decides. Values of more than 8 bits need a window: its lower
    end becomes black and its upper end white. Pictures of 8 bits are taken as they are, from 0 for
    black to 255 for white. `first` says that the first picture decided on the shape, and `chosen`
    where the form is chosen, which errors name.
    """

    shape: Shape | None = None  # channels, height, width
    window: tuple[float, float] | None = None
    resize: bool = False  # scale pictures of another size
    recolour: bool = False  # turn grey pictures into colour, or colour ones into grey
    first: bool = False
    chosen: Chosen = field(default="settings", compare=False)

    @staticmethod
    def of(
        shape: str = "", window: str = "", resize: bool = False, recolour: bool = False
    ) -> ImageForm:
        """Return the form of settings as a user writes them; empty texts stand for no setting."""
        return ImageForm(
            parse_shape(shape) if shape else None,
            parse_window(window) if window else None,
            resize,
            recolour,
        )

    def settings(self) -> dict[str, str | bool]:
        """Return the settings that `of` takes."""
        return {
            "shape": "x".join(map(str, self.shape or ())),
            "window": ":".join(map(_number, self.window or ())),
            "resize": self.resize,
            "recolour": self.recolour,
        }

    def like(self, image: NDArray[Any]) -> ImageForm:
        """Return the form with a shape: its own or, without one, that of this first picture."""
        if self.shape is not None:
            return self
        channels, height, width = image.shape
        return replace(self, shape=(channels, height, width), first=True)

    def in_grey(self) -> ImageForm:
        """Return the form of the same pictures with one channel."""
        assert self.shape is not None
        return replace(self, shape=(1, *self.shape[1:]))

    def remedy(self, **settings: object) -> str:
        """Return where to make these settings, in words."""
        options = " ".join(_option(key, value) for key, value in settings.items())
        if self.chosen == "options":
            return f"or give {options}"
        if self.chosen == "contract":
            return f"or agree on it: found the federation with `fedrfq committee init … {options}`"
        sets = " ".join(f"--set data.{key}={_text(value)}" for key, value in settings.items())
        return f"or give {sets}"

    def eight_bits(self, values: NDArray[Any], what: str) -> NDArray[np.uint8]:
        """Return values of any kind as bytes: as they are, or through the window."""
        if values.dtype == np.uint8:
            return values
        if values.dtype.kind not in "uifb":
            raise UserError(
                f"{what}: expected numbers as pixels, found {values.dtype}; convert them"
            )
        if self.window is None:
            raise Unfit(self._needs_window(values, what))
        scaled = np.empty(values.shape, np.uint8)
        for start in range(0, len(values), _CHUNK):
            part = slice(start, start + _CHUNK)
            scaled[part] = _through(self.window, values[part], what)
        return scaled

    def _needs_window(self, values: NDArray[Any], what: str) -> str:
        check_finite(values, what)
        low = float(values.min()) if values.size else 0.0
        high = float(values.max()) if values.size else 0.0
        window = suggested_window(low, high)
        return (
            f"{what}: expected pixels of 8 bits, found {values.dtype} from {low:g} to {high:g}, and"
            f" nothing says which value is black and which is white; convert them,"
            f" {self.remedy(window=window)}"
        )

    def fitted(self, image: NDArray[np.uint8], what: str) -> NDArray[np.uint8]:
        """Return a picture C×H×W in the form's colours and size."""
        assert self.shape is not None
        channels, height, width = self.shape
        if len(image) != channels:
            image = self._recoloured(image, channels, what)
        if image.shape[1:] != (height, width):
            image = self._resized(image, (height, width), what)
        return image

    def _recoloured(self, image: NDArray[np.uint8], channels: int, what: str) -> NDArray[np.uint8]:
        if channels == 1 and is_grey(image):
            return image[:1]
        if not self.recolour:
            kinds = {1: "grey", 3: "colour"}
            raise Unfit(
                f"{what}: expected a {kinds[channels]} picture, found a {kinds[len(image)]} one;"
                " convert it,"
                f" {self.remedy(shape=self.settings()['shape'], recolour=True)}"
            )
        if channels == 3:
            return np.repeat(image, 3, axis=0)
        return luma(image)

    def _resized(
        self, image: NDArray[np.uint8], size: tuple[int, int], what: str
    ) -> NDArray[np.uint8]:
        if not self.resize:
            raise Unfit(
                f"{what}: expected {size[1]}×{size[0]} pixels (width × height), found"
                f" {image.shape[2]}×{image.shape[1]}; resize it,"
                f" {self.remedy(shape=self.settings()['shape'], resize=True)}"
            )
        return scaled(image, size)


# Nothing is converted, and the first picture decides on the shape.
AS_FOUND = ImageForm()


def parse_shape(text: str) -> Shape:
    """Return channels, height and width of a text such as 1x28x28."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"shape: expected CHANNELSxHEIGHTxWIDTH with 1 or 3 channels, such as 1x28x28,"
            f" found {text!r:.60}; write it so"
        )
    channels, height, width = map(int, match.groups())
    if height * width > MAX_PIXELS:
        raise UserError(
            f"shape: expected at most {MAX_PIXELS} pixels, found {height}×{width}; use fewer"
        )
    return channels, height, width


def parse_window(text: str) -> tuple[float, float]:
    """Return the ends of a text such as 0:4095."""
    try:
        low, high = (float(end) for end in text.split(":"))
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(
            "window: expected BLACK:WHITE, the values that become black and white, such as 0:4095,"
            f" found {text!r:.60}; write it so"
        )
    return low, high


def suggested_window(low: float, high: float) -> str:
    """Return the usual window for values in this range."""
    if low >= 0 and high <= 1:
        return "0:1"
    if low < 0 or high > _WHITES[-1]:
        return f"{min(0, math.floor(low))}:{math.ceil(high)}"
    return f"0:{next(white for white in _WHITES if white >= high)}"


def scaled(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a picture C×H×W in another height and width, smoothly."""
    from PIL import Image

    if image.shape[1:] == size:
        return image
    height, width = size
    channels = [
        np.asarray(Image.fromarray(channel).resize((width, height), Image.Resampling.BILINEAR))
        for channel in image
    ]
    return np.stack(channels)


def _through(window: tuple[float, float], values: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Return values through a window: linearly in between, and cut off at its ends."""
    check_finite(values, what)
    low, high = window
    share = (values.astype(np.float64) - low) / (high - low)
    return np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)


def check_finite(values: NDArray[Any], what: str) -> None:
    """Raise UserError if there is no number for some pixel."""
    if not np.isfinite(values).all():
        raise UserError(f"{what}: expected finite pixels, found NaN or infinity; remove them")


def is_grey(image: NDArray[np.uint8]) -> bool:
    """Return whether a picture C×H×W has no colour: a colour file may hold a grey picture."""
    return bool((image == image[:1]).all())


def luma(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the brightness of a colour picture, by the weights of ITU-R BT.601."""
    weights_3 = np.array([299, 587, 114])
    total = np.tensordot(weights_3, image.astype(np.int64), 1)
    return ((total + 500) // 1000).astype(np.uint8)[None]


def _number(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return repr(value)


def _text(value: object) -> str:
    return str(value).lower()


def _option(key: str, value: object) -> str:
    if value is True:
        return f"--{key}"
    return f"--{key} {value}"
