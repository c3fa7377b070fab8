"""`fedrfq server`: run one server of a federation until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.cli.joining import Join, agree, await_founding, joined
from fedrfq.cli.options import LogFormat, LogLevel, StatusPort
from fedrfq.errors import UserError


def server(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of the server, with its keys and federation.toml."
        ),
    ],
    join: Join = None,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="With --join: where the others are to reach this server."
        ),
    ] = "",
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="Use this if the log is lost or damaged: it is set aside, "
            "and the server abstains until it is safe to vote again.",
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen. Default: the address of the server in federation.toml.",
        ),
    ] = None,
    status_port: StatusPort = 0,
    until_done: Annotated[
        bool, typer.Option("--until-done", help="Stop after the last round.")
    ] = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run one server of a federation.

    The server collects the clients' uploads, agrees on each round with the other servers and hands
    out certificates. SIGTERM and Ctrl-C stop it cleanly. After kill -9 or a power cut, start it
    again: it continues where it stopped.

    With --join it founds a federation together with others, from an empty folder.

    Example: fedrfq server hospital-a --join consortium --address a.example.org:7400
    """
    import asyncio

    from fedrfq.federation.members import endpoint
    from fedrfq.node import logs
    from fedrfq.node.membership import epochs
    from fedrfq.node.membership.identity import load
    from fedrfq.node.server import ServerOptions, serve

    if join is not None and not joined(folder, join):
        if not address:
            raise UserError("--join needs the address of this server: --address HOST:PORT")
        agree(await_founding(folder, join, address), join)
    logs.begin(log_format, log_level)
    listens_at = None
    if listen:
        listens_at = endpoint(listen)
    options = ServerOptions(rejoin, listens_at, status_port, until_done)
    # A crash may have interrupted the move to a successor federation; the identity that is loaded
    # next must be the one in the successor.
    epochs.complete_activation(folder)
    asyncio.run(serve(load(folder), options))
