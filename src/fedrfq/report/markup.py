"""Pieces of HTML. Everything that comes from outside is escaped here, and nowhere else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from fedrfq.files.strict_json import to_json

# Characters shown of a value and of a file, so that a damaged run cannot blow up the page.
_MAX_VALUE = 2000
_MAX_FILE = 40_000


class Link(NamedTuple):
    """A value that leads to another page."""

    name: str
    address: str

    def html(self) -> str:
        """Return the link as it stands in a page."""
        return f'<a href="{text(self.address)}">{text(self.name)}</a>'


def text(value: object) -> str:
    """Escape a value, shortened if it is very long."""
    content = str(value)
    if len(content) > _MAX_VALUE:
        content = content[:_MAX_VALUE] + "…"
    return escape(content)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> str:
    """Return a table whose last `numbers` columns are aligned as numbers."""
    classes = [""] * (len(header) - numbers) + [' class="number"'] * numbers
    head = _cells("th", header, classes)
    body = "".join(f"<tr>{_cells('td', row, classes)}</tr>" for row in rows)
    content = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{content}</table></div>'


def _cells(tag: str, values: Sequence[object], classes: Sequence[str]) -> str:
    return "".join(
        f"<{tag}{class_}>{value.html() if isinstance(value, Link) else text(value)}</{tag}>"
        for value, class_ in zip(values, classes, strict=True)
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a list of labels and values."""
    rows = "".join(
        f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd></div>" for label, value in pairs
    )
    return f"<dl>{rows}</dl>"


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return the key figures in large type; each entry is a label, a value and a remark."""
    content = "".join(
        f"<div><span>{text(label)}</span><strong>{text(value)}</strong>"
        f"<small>{text(remark)}</small></div>"
        for label, value, remark in entries
    )
    return f'<div class="tiles">{content}</div>'


def notes(lines: Iterable[str]) -> str:
    """Return a box of notes; nothing if there are none."""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    if not items:
        return ""
    return f'<ul class="notes">{items}</ul>'


def pre(content: str, columns: bool = False) -> str:
    """Return preformatted text, in `columns` on a wide screen."""
    if len(content) > _MAX_FILE:
        content = content[:_MAX_FILE] + "\n…"
    class_ = " class=columns" if columns else ""
    return f"<pre{class_}>{escape(content)}</pre>"


def png(content: bytes, description: str) -> str:
    """Return a picture that is part of the page."""
    encoded = base64.b64encode(content).decode()
    return f'<img src="data:image/png;base64,{encoded}" alt="{text(description)}">'


def paragraphs(lines: Iterable[str]) -> str:
    """Return each line as a paragraph."""
    return "".join(f"<p>{text(line)}</p>" for line in lines)


def data(value: Any) -> str:
    """Return JSON that can stand in a script element: nothing in it can end that element."""
    # JSON allows two line separators that JavaScript does not.
    return (
        to_json(value)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def digest(script: str) -> str:
    """Return the digest by which a page's content security policy admits this script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
