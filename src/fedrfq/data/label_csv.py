"""labels.csv: which class each picture of a folder is of, as a table of file names and labels."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path, PurePosixPath, PureWindowsPath

from fedrfq.data.archives import read_file
from fedrfq.errors import UserError

NAME = "labels.csv"
COLUMNS = ("file", "label")
MAX_BYTES = 1 << 26


def read(folder: Path) -> list[tuple[str, Path]]:
    """Return the class name and the path of each picture that the folder's table lists."""
    table = folder / NAME
    rows = csv.DictReader(io.StringIO(_text(table), newline=""), strict=True)
    try:
        _check_header(rows.fieldnames or (), table)
        found = [_row(row, folder, table, rows.line_num) for row in rows]
    except csv.Error as error:
        raise UserError(f"{table}: expected a table, found: {error}; write it again") from error
    paths = [path for _, path in found]
    if len(set(paths)) < len(paths):
        ((repeated, _),) = Counter(paths).most_common(1)
        raise UserError(f"{table}: expected each file once, found {repeated.name!r} twice; fix it")
    return found


def _text(table: Path) -> str:
    try:
        # Some programs begin a UTF-8 file with a mark.
        return read_file(table, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{table}: expected UTF-8 text, found other bytes; save it so") from error


def _check_header(names: object, table: Path) -> None:
    missing = [name for name in COLUMNS if name not in list(names)]  # type: ignore[call-overload]
    if missing:
        raise UserError(
            f"{table}: expected a first line with the columns {' and '.join(COLUMNS)}, "
            f"found no {missing[0]}; add it"
        )


def _row(row: dict[str, str | None], folder: Path, table: Path, line: int) -> tuple[str, Path]:
    name = (row["file"] or "").strip()
    label = (row["label"] or "").strip()
    if not label:
        raise UserError(f"{table}, line {line}: expected a label, found none; add it")
    # A table may come from somebody else: it must not name files outside the folder.
    parts = PurePosixPath(name).parts
    if (
        not name
        or ".." in parts
        or PurePosixPath(name).is_absolute()
        or PureWindowsPath(name).anchor
    ):
        raise UserError(
            f"{table}, line {line}: expected the name of a file in this folder, "
            f"found {name!r:.100}; fix it"
        )
    return label, folder / name
