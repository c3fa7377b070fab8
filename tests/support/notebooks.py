"""The notebooks of the docs: run cell by cell, as a new reader would, and what cells print."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from support.outside import new_process, typed
from support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
Cell = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    """Return a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code(notebook: dict[str, Any]) -> list[Cell]:
    """Return the cells of code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def output(cell: Cell) -> str:
    """Return what a cell printed when the notebook was written."""
    return "".join(line for shown in cell["outputs"] for line in shown["text"])


def printed(notebook: dict[str, Any]) -> list[str]:
    """Run all cells in the current folder, and return what each of them prints."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    try:
        return [_printed("".join(cell["source"]), scope) for cell in code(notebook)]
    finally:
        # What a notebook registers is gone after it.
        new_process()


def _printed(text: str, scope: dict[str, Any]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        typed(text, scope)
    return out.getvalue()


def write(path: Path) -> None:
    """Run a notebook in the current folder, and store in it what its cells print."""
    notebook = read(path)
    for number, (cell, text) in enumerate(
        zip(code(notebook), printed(notebook), strict=True), start=1
    ):
        lines = text.splitlines(keepends=True)
        shown = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [shown] if lines else []
        cell["execution_count"] = number
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
