"""Decoding one PNG or JPEG image that may be hostile."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError


def pixels(file: Path | IO[bytes], limit: int, what: str) -> NDArray[np.uint8]:
    """C×H×W of an image of at most `limit` pixels: one channel if it is grey, else three."""
    from PIL import Image

    try:
        with Image.open(file, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > limit:
                raise UserError(
                    f"{what}: expected at most {limit} pixels, found {image.size}; make it smaller"
                )
            grey = image.mode in ("1", "L")
            decoded = np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{what}: expected a PNG or JPEG image, found a broken one ({error}); replace it"
        ) from error
    if grey:
        return decoded[None]
    return decoded.transpose(2, 0, 1)
