"""Pieces of HTML. Whatever comes from outside is escaped here, and nowhere else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fedrfq.files.strict_json import to_json

_LONGEST = 2000  # letters of one value
_LONGEST_FILE = 40_000


def text(value: object) -> str:
    found = str(value)
    return escape(found if len(found) <= _LONGEST else found[:_LONGEST] + "…")


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> str:
    """The last `numbers` columns are aligned as numbers."""
    end = len(header) - numbers
    head = "".join(f"<th{_number(i, end)}>{text(name)}</th>" for i, name in enumerate(header))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_number(i, end)}>{text(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(column: int, end: int) -> str:
    if column >= end:
        return ' class="number"'
    return ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd></div>" for label, value in pairs
    )
    return f"<dl>{rows}</dl>"


def tiles(pairs: Iterable[tuple[str, str, str]]) -> str:
    """The few figures that matter most: what, how much, and a remark."""
    made = (
        f"<div><span>{text(a)}</span><strong>{text(b)}</strong><small>{text(c)}</small></div>"
        for a, b, c in pairs
    )
    return f'<div class="tiles">{"".join(made)}</div>'


def notes(lines: Iterable[str]) -> str:
    found = "".join(f"<li>{text(line)}</li>" for line in lines)
    if found:
        return f'<ul class="notes">{found}</ul>'
    return ""


def pre(content: str, columns: bool = False) -> str:
    if len(content) <= _LONGEST_FILE:
        cut = content
    else:
        cut = content[:_LONGEST_FILE] + "\n…"
    return f"<pre{' class=columns' if columns else ''}>{escape(cut)}</pre>"


def data(value: Any) -> str:
    """JSON that no part of can end the script element it stands in."""
    return (
        to_json(value)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def digest(script: str) -> str:
    """By which a page's policy allows this script, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
