"""Decode one PNG or JPEG image that may be hostile."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.files import regular

# An image of the most pixels, not compressed at all, takes fewer.
_MAX_FILE_BYTES = 1 << 27


def pixels(file: Path | IO[bytes], limit: int, what: str) -> NDArray[np.uint8]:
    """Return C×H×W of an image of at most `limit` pixels: 1 channel if it is grey, else 3."""
    from PIL import Image

    try:
        if isinstance(file, Path):
            file = io.BytesIO(regular.read_bytes(file, _MAX_FILE_BYTES, links=True))
        with Image.open(file, formats=("PNG", "JPEG")) as image:
            # Only the header has been read so far; decoding is what takes memory.
            if image.width * image.height > limit:
                raise UserError(
                    f"{what}: expected at most {limit} pixels, "
                    f"found {image.width}×{image.height}; make the image smaller"
                )
            is_grey = image.mode in ("1", "L")
            decoded = np.asarray(image.convert("L" if is_grey else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{what}: expected a PNG or JPEG image, found a damaged or different file ({error}); "
            "replace it"
        ) from error
    if is_grey:
        return decoded[None]
    return decoded.transpose(2, 0, 1)
