"""Sheets: tables of text to print or write as Markdown, and rows of figures to write as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.studies.intervals import Spread

NOTHING = "–"
# A spread's fields, and the names that they have as columns of a CSV file.
_SPREAD_COLUMNS = {"mean": "mean", "std": "std_seeds", "half": "half"}


@dataclass(frozen=True)
class Sheet:
    """A table of text; the first `labels` columns are words, the others figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    labels: int = 1

    def printed(self) -> Table:
        """Return the sheet as a table for the terminal."""
        table = Table(title=escape(self.title), title_justify="left")
        for i, name in enumerate(self.header):
            table.add_column(escape(name), justify="left" if i < self.labels else "right")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        """Return the sheet as a Markdown section, with its note below the table."""
        lines = [f"## {self.title}", "", _line(self.header), "|" + "---|" * len(self.header)]
        lines += [_line(row) for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write(
    folder: Path,
    title: str,
    sheets: Sequence[Sheet],
    whole: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write table.md from the sheets, table.json from `whole` and table.csv from the rows."""
    markdown = "\n".join([f"# {title}", "", *(sheet.markdown() for sheet in sheets)])
    write_atomically(folder / "table.md", markdown.encode())
    write_atomically(folder / "table.json", (to_json(whole, indent=1) + "\n").encode())
    # All rows have the same columns.
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "table.csv", text.getvalue().encode())


def flat(cell: Any) -> dict[str, Any]:
    """Return a dataclass's fields as columns; a spread takes three of them."""
    row: dict[str, Any] = {}
    for f in fields(cell):
        value = getattr(cell, f.name)
        # By the annotation, which is text here, and not by the value: a missing spread is None,
        # and must give the same three columns.
        if f.type == "Spread | None":
            row |= spread_columns(f.name, value)
        else:
            row[f.name] = value
    return row


def spread_columns(name: str, sample: Spread | None) -> dict[str, float | None]:
    """Return the columns of a spread, which are there even if it is missing."""
    return {
        f"{name}_{column}": getattr(sample, field, None)
        for field, column in _SPREAD_COLUMNS.items()
    }


def plus_minus(sample: Spread | None, digits: int = 2) -> str:
    """Format a mean ± its standard deviation over seeds."""
    if sample is None:
        return NOTHING
    mean = f"{sample.mean:.{digits}f}"
    if sample.std is None:
        return mean
    return f"{mean} ± {sample.std:.{digits}f}"


def interval(difference: Spread | None, digits: int = 2) -> str:
    """Format a difference, with its sign, ± half of its 95 % interval."""
    if difference is None:
        return NOTHING
    mean = f"{difference.mean:+.{digits}f}"
    if difference.half is None:
        return mean
    return f"{mean} ± {difference.half:.{digits}f}"
