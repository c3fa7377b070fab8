"""`fedrfq privacy`: what noise costs, or how much of it a budget asks for, before any run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def privacy(
    noise: Annotated[
        float | None,
        typer.Option(help="The noise: privacy.noise of an experiment. Its ε is printed."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The ε that all uploads may cost. The noise needed is printed."),
    ] = None,
    uploads: Annotated[
        int, typer.Option(help="How often a client uploads statistics on the public map.")
    ] = 1,
    delta: Annotated[float, typer.Option(help="The δ of the guarantee: privacy.delta.")] = 1e-5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a client's uploads on a public map cost: ε for a δ.

    It holds for whatever privacy.unit protects, and if nothing else leaves the client. The AUC is
    the largest that anybody can have who guesses from the uploads whether a sample was there, even
    one who knows all other samples; 0.5 is tossing a coin.

    Example: fedrfq privacy --noise 2.0 --uploads 10 --delta 1e-5 --json
    """
    from fedrfq.files.strict_json import to_json
    from fedrfq.privacy.cost import cost

    found = cost(noise, epsilon, uploads, delta)
    if json:
        typer.echo(to_json(vars(found)))
        return
    table = Table(show_header=False)
    table.add_row("noise", f"{found.noise:g} × what one sample, or client, can change")
    table.add_row("uploads", f"{found.uploads}")
    table.add_row("cost", f"ε = {found.epsilon:.4f} at δ = {found.delta:g}")
    table.add_row("largest AUC of an attacker", f"{found.auc:.4f}")
    Console().print(table)
