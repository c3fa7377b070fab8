"""Tables of text for people: printed, and as Markdown; and rows of figures as CSV."""

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


@dataclass(frozen=True)
class Sheet:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    labels: int = 1  # how many columns are no figures

    def printed(self) -> Table:
        table = Table(title=escape(self.title), title_justify="left")
        for i, name in enumerate(self.header):
            table.add_column(escape(name), justify="left" if i < self.labels else "right")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.header), "|" + "---|" * len(self.header)]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write(
    folder: Path,
    title: str,
    sheets: Sequence[Sheet],
    whole: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """table.md of the sheets, table.json of everything, table.csv of the rows."""
    markdown = "\n".join([f"# {title}", "", *(sheet.markdown() for sheet in sheets)])
    write_atomically(folder / "table.md", markdown.encode())
    write_atomically(folder / "table.json", (to_json(whole, indent=1) + "\n").encode())
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "table.csv", text.getvalue().encode())


def flat(cell: Any) -> dict[str, Any]:
    """A dataclass's fields as columns; a spread is three."""
    row: dict[str, Any] = {}
    for f in fields(cell):
        value = getattr(cell, f.name)
        if f.type == "Spread | None":
            names = {"mean": "mean", "std": "std_seeds", "half": "half"}
            row |= {
                f"{f.name}_{column}": getattr(value, name, None) for name, column in names.items()
            }
        else:
            row[f.name] = value
    return row


def plus_minus(found: Spread | None, digits: int = 2, sign: str = "") -> str:
    """Mean ± standard deviation over seeds."""
    if found is None:
        return NOTHING
    return f"{found.mean:{sign}.{digits}f}" + (
        "" if found.std is None else f" ± {found.std:.{digits}f}"
    )


def interval(found: Spread | None, digits: int = 2) -> str:
    """A difference with its 95 % interval."""
    if found is None:
        return NOTHING
    return f"{found.mean:+.{digits}f}" + (
        "" if found.half is None else f" ± {found.half:.{digits}f}"
    )
