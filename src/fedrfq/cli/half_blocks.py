"""Small pictures in a terminal: a character shows two pixels, one above the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from fedrfq.data.image_form import scaled

# Pixels of the longer side.
MAX_SIDE = 24
_UPPER = "▀"
# From dark to bright, where there are no colours.
_SHADES = " ░▒▓█"


def half_blocks(image: NDArray[Any], colours: bool) -> Text:
    """Return a picture C×H×W as text; without `colours` its brightness as shades."""
    small = scaled(image.astype(np.uint8), _size(image))
    pixels_HWC = np.broadcast_to(small, (3, *small.shape[1:])).transpose(1, 2, 0)
    text = Text()
    for row in range(0, len(pixels_HWC), 2):
        pair = pixels_HWC[row : row + 2]
        for column in range(pair.shape[1]):
            text.append(*_character(pair[:, column], colours))
        text.append("\n")
    text.right_crop(1)
    return text


def _size(image: NDArray[Any]) -> tuple[int, int]:
    """Return an even height and a width that fit, and keep the proportions."""
    _, height, width = image.shape
    share = min(1.0, MAX_SIDE / max(height, width))
    return 2 * max(1, round(height * share / 2)), max(1, round(width * share))


def _character(pair: NDArray[np.uint8], colours: bool) -> tuple[str, Style | None]:
    if not colours:
        return _SHADES[int(pair.mean() * len(_SHADES) / 256)], None
    upper, lower = (Color.from_rgb(*pixel.tolist()) for pixel in pair)
    return _UPPER, Style(color=upper, bgcolor=lower)
