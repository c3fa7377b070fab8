"""Rows as a table: a pandas DataFrame where pandas is installed, else a dict of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Any:
    """Return the rows as a table with the columns of the first row, or with these names."""
    if rows:
        names = list(rows[0])
    columns = {name: [row[name] for row in rows] for name in names}
    try:
        import pandas
    except ImportError:
        return columns
    return pandas.DataFrame(columns)


def value(text: str) -> int | float | str | None:
    """Return a cell of a CSV file as a number where it is one, and None where it is empty."""
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
