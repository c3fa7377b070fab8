"""`fedrfq security`: how likely a committee is to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.terminal import say


def security(
    servers: Annotated[str, typer.Option(help="Numbers of servers: N, or FIRST..LAST.")] = "4..40",
    p: Annotated[
        str, typer.Option("--p", help="Probabilities that a server is faulty, by commas.")
    ] = "0.1,0.2,0.3",
    plot: Annotated[
        Path | None, typer.Option(help="Draw it to this file too (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Print how likely a committee is to hold: that at most a third of its servers are faulty, exactly.

    Example: fedrfq security --servers 4..40 --p 0.1,0.2,0.3 --plot security.png
    """
    from fedrfq.paper.security import draw, numbers, probabilities, tolerated
    from fedrfq.paper.security import security as exact

    sizes = numbers(servers)
    chances = probabilities(p)
    table = Table("servers", "may be faulty", *(f"p = {float(chance):g}" for chance in chances))
    for size in sizes:
        table.add_row(
            str(size),
            str(tolerated(size)),
            *(f"{float(exact(size, chance)):.6f}" for chance in chances),
        )
    Console().print(table)
    if plot:
        draw(plot, sizes, chances)
        say(Console(), f"wrote {plot}")
