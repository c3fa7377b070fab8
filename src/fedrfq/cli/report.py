"""`fedrfq report`: a run, or several beside each other, as a page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import say

if TYPE_CHECKING:
    from fedrfq.report.page import ReportPage


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…", help="A run's directory; several, or folders of runs, to compare them."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; by default report.html in the directory, of several in the current one."
        ),
    ] = None,
) -> None:
    """Write a run as one page of HTML that opens from disk, with every figure as PNG and CSV in a folder beside it.

    Several runs, or a folder of them (at most 200 runs), are compared: curves, differences, and what was set differently.

    Example: fedrfq report runs/quickstart/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.report.find_runs import runs_in
    from fedrfq.report.write import write

    target = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    runs = runs_in(paths)
    files = write(lambda: _page(runs, alone=runs == paths[:1]), target)
    say(
        Console(),
        f"wrote {files[0]} and, in {target.with_suffix('')}, {len(files) - 1} pictures and tables",
    )


def _page(runs: list[Path], alone: bool) -> ReportPage:
    from fedrfq.report import comparison_page, run_page

    if alone:
        return run_page.page(runs[0])
    return comparison_page.page(runs)
