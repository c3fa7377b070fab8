"""`fedrfq committee`: found a committee, change it, watch it, and try to break it."""

from __future__ import annotations

import typer

from fedrfq.cli import change, founding, fuzz, status

app = typer.Typer(
    help="Found, change and watch a committee of servers, or try to break a simulated one.",
    no_args_is_help=True,
)
app.command()(founding.init)
app.command()(founding.add)
app.command()(change.change)
app.command()(change.approve)
app.command()(change.purge)
app.command()(status.status)
app.command()(fuzz.fuzz)
app.command()(fuzz.replay)
app.command()(fuzz.explore)
