"""`fedrfq server`: run one server of a federation until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.cli.options import LogFormat, LogLevel, StatusPort


def server(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of the server, with its keys and federation.toml."
        ),
    ],
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

    Example: fedrfq server consortium/server-0
    """
    import asyncio

    from fedrfq.federation.members import endpoint
    from fedrfq.node import logs
    from fedrfq.node.membership import epochs
    from fedrfq.node.membership.identity import load
    from fedrfq.node.server import ServerOptions, serve

    logs.begin(log_format, log_level)
    address = None
    if listen:
        address = endpoint(listen)
    options = ServerOptions(rejoin, address, status_port, until_done)
    # A crash may have interrupted the move to a successor federation; the identity that is loaded
    # next must be the one in the successor.
    epochs.complete_activation(folder)
    asyncio.run(serve(load(folder), options))
