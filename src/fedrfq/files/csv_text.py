"""Rows as CSV text that is safe to open in a spreadsheet.

A spreadsheet takes a cell that starts with one of = + - @, a tab or a carriage return for a formula
and computes it. Names of classes, reasons and settings may be anybody's, so such a text gets an
apostrophe before it, which a spreadsheet does not show. Numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, header: bool = True
) -> str:
    """Return these columns of the rows as CSV, below a line with their names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    # float() also takes white space around a number, and a tab is one of the signs above.
    return text == text.strip()
