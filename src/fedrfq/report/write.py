"""The files of a report: the page, and beside it a folder with every figure as a picture and its data as CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files.atomic import write_atomically, writing
from fedrfq.report import vega
from fedrfq.report.page import ReportPage


def write(make: Callable[[], ReportPage], out: Path) -> list[Path]:
    """The page and all that is beside it."""
    if out.suffix != ".html":
        raise UserError(f"--out is the page's file, such as report.html, not '{out}'")
    vega.check()
    with vega.programming() as program:
        page = make()
        pictures = [vega.png(figure) for figure in page.figures()]
        files = {out: page.render(program()).encode()}
    for figure, picture in zip(page.figures(), pictures, strict=True):
        files[_beside(out) / f"{figure.name}.png"] = picture
        files[_beside(out) / f"{figure.name}.csv"] = figure.csv().encode()
    with writing(out):
        _beside(out).mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)


def _beside(out: Path) -> Path:
    return out.with_suffix("")
