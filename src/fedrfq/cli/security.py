"""`fedrfq security`: the probability that few enough servers of a committee are faulty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.terminal import say


def security(
    servers: Annotated[
        str, typer.Option(metavar="N|FIRST..LAST", help="The number of servers, or a range of it.")
    ] = "4..40",
    p: Annotated[
        str,
        typer.Option(
            "--p",
            metavar="P,P,…",
            help="Probabilities that a server is faulty, separated by commas.",
        ),
    ] = "0.1,0.2,0.3",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the curves to this .png, .svg or .pdf file."),
    ] = None,
) -> None:
    """Print the probability that a committee tolerates its faulty servers.

    A committee tolerates up to f = ⌊(N−1)/3⌋ faulty servers of N. The probability is computed
    exactly, for servers that fail independently of each other.

    Example: fedrfq security --servers 4..40 --p 0.1,0.2,0.3 --plot security.png
    """
    from fedrfq.paper.security import draw, numbers, probabilities, tolerated
    from fedrfq.paper.security import security as exact

    # Exact fractions; only what is printed is rounded.
    sizes = numbers(servers)
    chances = probabilities(p)
    table = Table("servers", "may be faulty", *(f"p = {float(chance):g}" for chance in chances))
    for size in sizes:
        figures = [f"{float(exact(size, chance)):.6f}" for chance in chances]
        table.add_row(str(size), str(tolerated(size)), *figures)
    console = Console()
    console.print(table)
    if plot:
        draw(plot, sizes, chances)
        say(console, f"wrote {plot}")
