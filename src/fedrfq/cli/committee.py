"""fedrfq committee: found one, look at one that runs, try to break it."""

from __future__ import annotations

import typer

from fedrfq.cli import change, founding, fuzz, status

app = typer.Typer(
    help="The committee of servers: found one, see how it does, fuzz it, replay a schedule, explore a small model.",
    no_args_is_help=True,
)
app.command()(founding.init)
app.command()(founding.add)
app.command()(change.change)
app.command()(change.approve)
app.command()(status.status)
app.command()(fuzz.fuzz)
app.command()(fuzz.replay)
app.command()(fuzz.explore)
