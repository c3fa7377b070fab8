"""Sheets: tables of text to print or write as Markdown, and rows of figures to write as CSV."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedrfq.files.atomic import write_atomically
from fedrfq.files.csv_text import csv_text
from fedrfq.files.strict_json import to_json
from fedrfq.studies.intervals import Spread

NOTHING = "–"
Cell = Mapping[str, Any]  # figures of one place in a grid: labels, counts, means and spreads
Columns = Mapping[str, Callable[[Cell], str]]  # by heading, the text of a cell
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

    @staticmethod
    def of(
        title: str, columns: Columns, cells: Iterable[Cell], note: str = "", labels: int = 1
    ) -> Sheet:
        """Return a table with a row for each cell."""
        rows = [tuple(text(cell) for text in columns.values()) for cell in cells]
        return Sheet(title, tuple(columns), tuple(rows), note, labels)

    @staticmethod
    def matrix(
        title: str,
        down: tuple[str, Sequence[str]],
        across: tuple[str, Sequence[str]],
        cells: Iterable[Cell],
        text: Callable[[Cell], str],
        note: str = "",
    ) -> Sheet:
        """Return a table of one axis by another, each given by its name and labels."""
        texts = {(cell[down[0]], cell[across[0]]): text(cell) for cell in cells}
        rows = [(a, *(texts.get((a, b), NOTHING) for b in across[1])) for a in down[1]]
        return Sheet(title, (down[0], *across[1]), tuple(rows), note)

    def with_note(self, text: str) -> Sheet:
        """Return the sheet with a paragraph more in its note."""
        return replace(self, note="\n\n".join(filter(None, [self.note, text])))

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
    write_atomically(folder / "table.csv", csv_text(list(rows[0]), rows).encode())


def plain(cell: Cell) -> dict[str, Any]:
    """Return a cell's values as plain ones, for JSON."""
    return {
        key: asdict(value) if isinstance(value, Spread) else value for key, value in cell.items()
    }


def flat(cell: Cell, spreads: Collection[str]) -> dict[str, Any]:
    """Return a cell's values as columns; each of the `spreads` takes three, even if it is None."""
    row: dict[str, Any] = {}
    for key, value in cell.items():
        if key in spreads:
            for field, column in _SPREAD_COLUMNS.items():
                row[f"{key}_{column}"] = getattr(value, field, None)
        else:
            row[key] = value
    return row


def number(value: float | None, form: str = ",.0f") -> str:
    """Format a number that may be missing."""
    if value is None:
        return NOTHING
    return format(value, form)


def plus_minus(sample: Spread | None, digits: int = 2) -> str:
    """Format a mean ± its standard deviation over seeds."""
    return _with_spread(sample, "std", "", digits)


def mean_and_half(sample: Spread | None, digits: int = 2) -> str:
    """Format a mean ± half of its 95 % interval."""
    return _with_spread(sample, "half", ",", digits)


def interval(difference: Spread | None, digits: int = 2) -> str:
    """Format a difference, with its sign, ± half of its 95 % interval."""
    return _with_spread(difference, "half", "+", digits)


def _with_spread(sample: Spread | None, field: str, form: str, digits: int) -> str:
    if sample is None:
        return NOTHING
    text = format(sample.mean, f"{form}.{digits}f")
    spread = getattr(sample, field)
    if spread is None:
        return text
    return f"{text} ± {spread:.{digits}f}"
