"""fedrfq committee: found one, look at one that runs, try to break it."""

from __future__ import annotations

import typer

from fedrfq import cli_change, cli_founding, cli_fuzz, cli_status

app = typer.Typer(
    help="The committee of servers: found one, see how it does, fuzz it, replay a schedule, explore a small model.",
    no_args_is_help=True,
)
app.command()(cli_founding.init)
app.command()(cli_founding.add)
app.command()(cli_change.change)
app.command()(cli_change.approve)
app.command()(cli_status.status)
app.command()(cli_fuzz.fuzz)
app.command()(cli_fuzz.replay)
app.command()(cli_fuzz.explore)
