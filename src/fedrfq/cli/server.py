"""`fedrfq server`: one server of a federation, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def server(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The server's folder, with its keys and federation.toml."
        ),
    ],
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="Its log is lost or damaged: set it aside, and abstain until that is safe.",
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where to listen, if not at its address in federation.toml."
        ),
    ] = None,
    status_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Loopback port of /status, /metrics and /healthz; 0: any that is free.",
        ),
    ] = 0,
    until_done: Annotated[
        bool, typer.Option("--until-done", help="Stop after the last round.")
    ] = False,
    log_format: Annotated[
        str, typer.Option(help="text or json; the log goes to standard error.")
    ] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a server: take the clients' uploads, agree on each round with the other servers, hand out certificates.

    SIGTERM and Ctrl-C stop it cleanly; after kill -9 or a power cut, start it again: it goes on where it was.

    Example: fedrfq server consortium/server-0
    """
    import asyncio

    from fedrfq.federation.members import endpoint
    from fedrfq.node import logs
    from fedrfq.node.membership import epochs
    from fedrfq.node.membership.identity import load
    from fedrfq.node.server import ServerOptions, serve

    logs.begin(log_format, log_level)
    options = ServerOptions(rejoin, endpoint(listen) if listen else None, status_port, until_done)
    epochs.complete_activation(folder)
    asyncio.run(serve(load(folder), options))
