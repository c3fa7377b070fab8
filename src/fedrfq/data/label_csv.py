"""labels.csv: which class each picture of a folder is of, as a table of file names and labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
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
    if not found:
        raise UserError(f"{table}: expected a row for each picture, found none; add them")
    _check_once([path for _, path in found], table)
    return found


def _check_once(paths: list[Path], table: Path) -> None:
    seen: set[Path] = set()
    for path in paths:
        if path in seen:
            name = str(path.relative_to(table.parent))
            raise UserError(f"{table}: expected each file once, found {name!r:.200} twice; fix it")
        seen.add(path)


def _text(table: Path) -> str:
    try:
        # Some programs begin a UTF-8 file with a mark.
        return read_file(table, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{table}: expected UTF-8 text, found other bytes; save it so") from error


def _check_header(names: Sequence[str], table: Path) -> None:
    if not set(COLUMNS) <= set(names):
        found = ",".join(names)
        raise UserError(
            f"{table}: expected a first line with the columns {' and '.join(COLUMNS)}, separated by"
            f" a comma, found {found!r:.100}; write it so"
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
    if _is_missing(folder / name):
        raise UserError(
            f"{table}, line {line}: expected the name of a file in this folder, found"
            f" {name!r:.100}, which is not there; fix the name, or add the file"
        )
    return label, folder / name


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        # Whoever reads the file says what is wrong with it.
        return False
    return False
