"""Decode one PNG, JPEG or TIFF image that may be hostile."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.image_form import AS_FOUND, ImageForm
from fedrfq.errors import UserError
from fedrfq.files import regular

# An image of the most pixels, not compressed at all, takes fewer.
_MAX_FILE_BYTES = 1 << 27

if TYPE_CHECKING:
    from PIL.Image import Image

# A TIFF may hold nearly any other format; these are simple, and lossless.
_TIFF_COMPRESSIONS = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate")
_PHOTOMETRIC = 262  # the tag of a TIFF that says what 0 is
_WHITE_IS_ZERO = 0
_GREY = ("1", "L", "LA")
# Others, such as CMYK, look different on every screen and printer.
_RGB = ("RGB", "RGBA", "RGBX", "RGBa", "P", "PA")
# As Pillow calls pixels of one channel with more than 8 bits.
_DEEP = ("I", "I;16", "I;16B", "I;16L", "F")


def pixels(
    file: Path | IO[bytes], limit: int, what: str, form: ImageForm = AS_FOUND
) -> NDArray[np.uint8]:
    """Return C×H×W of an image of at most `limit` pixels: 1 channel if it is grey, else 3.

    Values of more than 8 bits go through the form's window.
    """
    return form.eight_bits(values(file, limit, what), what)


def values(file: Path | IO[bytes], limit: int, what: str) -> NDArray[Any]:
    """Return C×H×W of an image of at most `limit` pixels, in as many bits as it has."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path):
        file = _read(file, what)
    try:
        with _without_warnings(), Image.open(file, formats=("PNG", "JPEG", "TIFF")) as image:
            # Only the header has been read so far; decoding is what takes memory.
            if image.width * image.height > limit:
                raise UserError(
                    f"{what}: expected at most {limit} pixels, "
                    f"found {image.width}×{image.height}; make the image smaller"
                )
            if image.format == "TIFF":
                _check_tiff(image, what)
            return values_of(image, what)
    except (UserError, MemoryError):
        raise
    except UnidentifiedImageError as error:  # its text has no more than where the bytes lie
        raise UserError(
            f"{what}: expected a PNG, JPEG or TIFF image, found a damaged or other file; replace it"
        ) from error
    except Exception as error:  # a hostile header may raise nearly anything
        raise UserError(
            f"{what}: expected a PNG, JPEG or TIFF image, found a damaged or other file ({error}); "
            "replace it"
        ) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep Pillow from printing lines of its own; what it cannot read it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read(path: Path, what: str) -> IO[bytes]:
    try:
        data = regular.read_bytes(path, _MAX_FILE_BYTES, links=True)
    except (OSError, ValueError) as error:  # ValueError: the name has a null byte
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{what}: expected a PNG, JPEG or TIFF image, found a file that cannot be read ({why});"
            " replace it, or let this user read it"
        ) from error
    if not data:
        raise UserError(
            f"{what}: expected a PNG, JPEG or TIFF image, found an empty file; replace it"
        )
    return io.BytesIO(data)


def _check_tiff(image: Image, what: str) -> None:
    """Refuse what a TIFF may be and a picture is not: a pile of pages, or any other format."""
    compression = str(image.info.get("compression"))
    if compression not in _TIFF_COMPRESSIONS:
        raise UserError(
            f"{what}: expected a TIFF that is not compressed, or by LZW or Deflate, found"
            f" {compression!r:.40}; save it so"
        )
    # Pillow turns 8 bits around, and leaves more bits as they are.
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if image.mode in _DEEP and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        raise UserError(
            f"{what}: expected a TIFF in which 0 is black, found one in which it is white;"
            " save it the other way round"
        )
    try:
        image.seek(1)
    except EOFError:
        return
    raise UserError(f"{what}: expected a TIFF of one page, found several; save each by itself")


def values_of(image: Image, what: str) -> NDArray[Any]:
    """Return an image's values as C×H×W, in as many bits as the file has."""
    from PIL import ImageOps

    # Pillow would silently drop the lower half of such values.
    deep = image.mode in _DEEP
    if not deep and any(";16" in str(tile) for tile in getattr(image, "tile", ())):
        raise UserError(
            f"{what}: expected colours of 8 bits, found 16; convert the image to 8 bits, "
            "or to grey of 16 bits"
        )
    # A camera says beside the pixels how it was held.
    ImageOps.exif_transpose(image, in_place=True)
    if deep:
        return np.asarray(image)[None]
    _check_opaque(image, what)
    if image.mode in _GREY:
        return np.asarray(image.convert("L"))[None]
    if image.mode not in _RGB:
        raise UserError(
            f"{what}: expected grey or RGB colours, found {image.mode}; save the image as RGB"
        )
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _check_opaque(image: Image, what: str) -> None:
    """Refuse what shines through: what a viewer shows there is not what the file stores."""
    if not {"A", "a"} & set(image.getbands()) and "transparency" not in image.info:
        return
    alpha = image.convert("RGBA").getchannel("A")
    if alpha.getextrema() != (255, 255):
        raise UserError(
            f"{what}: expected a picture without transparency, found pixels that shine through;"
            " save it on a background"
        )
