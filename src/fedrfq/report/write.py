"""Writes a report: the page, and beside it a folder with each figure as PNG and its data as CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.files.atomic import reporting_write_errors, write_atomically
from fedrfq.report import vega
from fedrfq.report.page import ReportPage


def write(make: Callable[[], ReportPage], out: Path) -> list[Path]:
    """Write the page that `make` returns, and its figures; return the paths of all files."""
    if out.suffix != ".html":
        raise UserError(f"--out must name an HTML file, such as report.html, not '{out}'")
    vega.check()
    folder = out.with_suffix("")
    # All is made before anything is written: a report that fails leaves no files.
    with vega.programming() as program:
        page = make()
        pictures = [vega.png(figure) for figure in page.figures()]
        files = {out: page.render(program()).encode()}
    for figure, picture in zip(page.figures(), pictures, strict=True):
        files[folder / f"{figure.name}.png"] = picture
        files[folder / f"{figure.name}.csv"] = figure.csv().encode()
    with reporting_write_errors(out):
        folder.mkdir(parents=True, exist_ok=True)
    regular.check_folder(folder)
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)
