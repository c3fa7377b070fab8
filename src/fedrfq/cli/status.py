"""`fedrfq committee status`: how the servers and clients on this machine are doing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from fedrfq.cli.terminal import interruptible, wide_console
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.cli.status_tables import Status

_INTERVAL_S = 1.0


def status(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="Folders of servers and clients, or of a federation with several of them.",
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")
    ] = False,
) -> None:
    """Show how the servers and clients on this machine are doing.

    Of servers, shows the round, view and leader, which have voted or are behind, which clients were
    filtered and why, and any evidence of misbehaviour. Of clients, shows the round, the last
    upload and its receipts, the last certified result, and how the upload was judged.

    Example: fedrfq committee status consortium/server-0 --watch
    """
    console = wide_console()
    if watch:
        _watch(folders, console)
    else:
        console.print(_tables(folders))


def _tables(folders: Sequence[Path]) -> RenderableType:
    from fedrfq.cli.status_tables import status_tables
    from fedrfq.node.ops.status_client import ask, parties

    found: dict[str, dict[str, Status | None]] = {"server": {}, "client": {}}
    for folder in folders:
        for path, role in parties(folder):
            found[role][path.name] = ask(path)
    if not any(status for statuses in found.values() for status in statuses.values()):
        names = ", ".join(map(str, folders))
        raise UserError(
            f"no server or client of {names} is running on this machine: "
            "start one with `fedrfq server DIR` or `fedrfq client DIR`"
        )
    return status_tables(found["server"], found["client"])


def _watch(folders: Sequence[Path], console: Console) -> None:
    with (
        interruptible(),
        Live(_tables(folders), console=console, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(_INTERVAL_S)
            live.update(_tables(folders), refresh=True)
