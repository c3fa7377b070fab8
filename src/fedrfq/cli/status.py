"""`fedrfq committee status`: how the servers of this machine are doing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from fedrfq.cli.terminal import INTERRUPTED, terminated_as_interrupt
from fedrfq.errors import UserError

_WIDTH = 160  # of what is printed to a file
_EVERY_S = 1.0


def status(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A server's folder, or one with several of them in it."),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show round, view and leader, who voted, who is behind, who was filtered and why, and evidence.

    Example: fedrfq committee status consortium/server-0 --watch
    """
    console = Console()
    if console.is_terminal:
        console = console
    else:
        console = Console(width=_WIDTH)
    console.print(_look(folder)) if not watch else _watch(folder, console)


def _look(folder: Path) -> RenderableType:
    from fedrfq.cli.status_tables import shown
    from fedrfq.node.ops.status_client import ask, servers

    boards = {path.name: ask(path) for path in servers(folder)}
    if not any(boards.values()):
        raise UserError(
            f"no server of {folder} runs on this machine: `fedrfq server DIR` starts one"
        )
    return shown(boards)


def _watch(folder: Path, console: Console) -> None:
    try:
        with (
            terminated_as_interrupt(),
            Live(_look(folder), console=console, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(_EVERY_S)
                live.update(_look(folder), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
