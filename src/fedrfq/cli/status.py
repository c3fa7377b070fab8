"""`fedrfq committee status`: how the servers on this machine are doing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from fedrfq.cli.terminal import INTERRUPTED, terminated_as_interrupt, wide_console
from fedrfq.errors import UserError

_INTERVAL_S = 1.0


def status(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of a server, or of a federation with several servers."
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")
    ] = False,
) -> None:
    """Show how the servers on this machine are doing.

    Shows the round, view and leader, which servers have voted or are behind, which clients were
    filtered and why, and any evidence of misbehaviour.

    Example: fedrfq committee status consortium/server-0 --watch
    """
    console = wide_console()
    if watch:
        _watch(folder, console)
    else:
        console.print(_tables(folder))


def _tables(folder: Path) -> RenderableType:
    from fedrfq.cli.status_tables import status_tables
    from fedrfq.node.ops.status_client import ask, servers

    statuses = {path.name: ask(path) for path in servers(folder)}
    if not any(statuses.values()):
        raise UserError(
            f"no server of {folder} is running on this machine: start one with `fedrfq server DIR`"
        )
    return status_tables(statuses)


def _watch(folder: Path, console: Console) -> None:
    try:
        with (
            terminated_as_interrupt(),
            Live(_tables(folder), console=console, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(_INTERVAL_S)
                live.update(_tables(folder), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
