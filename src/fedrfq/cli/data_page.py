"""What a client's data look like to its federation, as a page for its owner's eyes."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedrfq.node.data_preview import ClassPreview, DataPreview

# Classes of which a picture is shown.
_MAX_PICTURES = 1000
# Nothing is loaded and nothing is run, whatever a class is called.
_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>A client's data</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
td, th { padding: .3rem 1rem .3rem 0; text-align: left; vertical-align: middle }
img { height: 6rem; image-rendering: pixelated }
</style>
"""


def data_page(found: DataPreview) -> str:
    """Return an HTML page with the samples and a picture of each class, and what is uploaded."""
    rows = [_row(each, number < _MAX_PICTURES) for number, each in enumerate(found.classes)]
    header = "<tr><th>class<th>training samples<th>test samples<th>the first of them"
    uploads = "".join(f"<li>{escape(line)}" for line in found.uploads)
    window = ""
    if found.window is not None:
        window = f"<p>{escape(found.window.about)}</p>\n"
    return (
        f"{_HEAD}<h1>Your data</h1>\n<p>{escape(found.about)}</p>\n{window}<table>\n{header}\n"
        f"{''.join(rows)}</table>\n<h2>What this client would upload</h2>\n<ul>{uploads}</ul>\n"
    )


def _row(each: ClassPreview, pictured: bool) -> str:
    picture = ""
    if each.picture is not None and pictured:
        picture = f'<img alt="" src="data:image/png;base64,{_png(each.picture)}">'
    return f"<tr><td>{escape(each.name)}<td>{each.train}<td>{each.test}<td>{picture}\n"


def _png(image: NDArray[Any]) -> str:
    """Return a picture C×H×W as PNG, in base64."""
    from PIL import Image

    pixels = image[0]
    if len(image) == 3:
        pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
