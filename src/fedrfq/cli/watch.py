"""`fedrfq watch`: follow runs, or a federation, on a page of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.options import run_paths
from fedrfq.cli.terminal import interruptible, say


def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="A run directory, or latest; a folder of runs; or the folder of a federation. "
            "Several runs are shown side by side.",
            callback=run_paths,
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the page. Default: any free one.")
    ] = 0,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser of this machine.")
    ] = False,
) -> None:
    """Follow a run, a grid or a federation on one page while it goes on, until Ctrl-C.

    The page shows curves, clients and classes, prototypes moving in the plane, who was given less
    weight, views and leaders, and the time left. It is served to this machine alone, needs no
    network, and changes nothing.

    Example: fedrfq watch latest
    """
    import asyncio

    from fedrfq.report import vega
    from fedrfq.report.watch import Watch, watched

    vega.check()
    serving = Watch(watched(paths)).serve(port, lambda address: _say_where(address, open_))
    with interruptible():
        asyncio.run(serving)


def _say_where(address: str, open_: bool) -> None:
    say(Console(), f"open {address} in a browser; Ctrl-C ends the watch")
    if open_:
        typer.launch(address)
