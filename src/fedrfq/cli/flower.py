"""`fedrfq flower run`: the federation on Flower's engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.errors import UserError

app = typer.Typer(help="Run a federation on Flower's engines.", no_args_is_help=True)


@app.callback()
def flower() -> None:
    """Keep `run` a command of its own, though it is the only one."""


@app.command("run")
def run(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="APP", help="The folder of the Flower app, such as examples/flower."
        ),
    ],
    nodes: Annotated[
        int, typer.Option(min=1, help="How many nodes to simulate; each takes one core.")
    ] = 2,
    run_config: Annotated[
        list[str] | None,
        typer.Option(
            "--run-config",
            metavar="KEY=VALUE…",
            help="Settings of the app, such as \"experiment='mine.toml' patience-s=60\".",
        ),
    ] = None,
    superlink: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run on this SuperLink of Flower's configuration and its nodes. "
            "Default: simulate nodes on this machine.",
        ),
    ] = None,
) -> None:
    """Run a Flower app with this installation, and end with its success or failure.

    `flwr run` ends with 0 even if the run has failed, installs the app's dependencies from the
    network, and leaves a SuperLink in the background. This command ends with 1 if the run did not
    complete, takes fedrfq as it is installed here, and leaves nothing behind.

    Example: fedrfq flower run examples/flower --nodes 4
    """
    from fedrfq.flower import launcher

    if not (folder / "pyproject.toml").is_file():
        raise UserError(
            f"{folder} is not a Flower app, it has no pyproject.toml: name one, such as "
            "examples/flower"
        )
    status = launcher.run(folder, superlink, nodes, run_config or [])
    if status != launcher.COMPLETED:
        typer.echo(f"error: the run ended as {status}; its log above says why", err=True)
        raise typer.Exit(1)
