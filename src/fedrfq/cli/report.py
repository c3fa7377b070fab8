"""`fedrfq report`: one run, or a comparison of several, as a page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedrfq.cli.options import run_paths
from fedrfq.cli.terminal import say

if TYPE_CHECKING:
    from fedrfq.report.page import ReportPage

_PAGE = "report.html"


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="A run directory, or latest. Give several, or folders of runs, to compare runs.",
            callback=run_paths,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write. Default: report.html in the run directory, "
            "or in the current folder if there are several.",
        ),
    ] = None,
) -> None:
    """Write a run, or a comparison of runs, as one HTML page that opens from disk.

    Every figure of the page is also written as PNG and CSV, to a folder beside the page. A
    comparison takes up to 200 runs and shows their curves, differences and settings.

    Example: fedrfq report runs/quickstart/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.report.write import write
    from fedrfq.runs.find_runs import runs_in

    folder = Path()
    if len(paths) == 1:
        folder = paths[0]
    target = out or folder / _PAGE
    # A folder may hold one run or many; what was found decides which page it becomes.
    runs = runs_in(paths)
    page, *figures = write(lambda: _page(runs, single=runs == paths[:1]), target)
    say(
        Console(),
        f"wrote {page}, and {len(figures)} figures and tables to {target.with_suffix('')}",
    )


def _page(runs: list[Path], single: bool) -> ReportPage:
    from fedrfq.report import comparison_page, run_page

    if single:
        return run_page.page(runs[0])
    page = comparison_page.page(runs)
    for line in page.left_out:
        say(Console(stderr=True), line)
    return page
