"""`fedrfq doctor`: what keeps a party from taking part in its federation, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

# The exit code when something would keep the party from taking part.
_FAILED = 1


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a party.")],
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for each server to answer.")
    ] = 5.0,
) -> None:
    """Check that a party can take part in its federation.

    Checks the party's folder, keys, certificates, clock, port and disk, and whether it can reach
    every server. The exit code is 1 if something would keep the party from taking part; the table
    then says what to do. The check cannot tell whether this clock agrees with the others', or
    whether the others can reach this machine.

    Example: fedrfq doctor consortium/server-0
    """
    from fedrfq.node.ops.doctor import FAILED, examine

    table = Table("check", "result", Column("details", overflow="fold"))
    findings = list(examine(folder, patience_s=timeout))
    for finding in findings:
        table.add_row(finding.what, finding.grade, finding.note)
    Console(markup=False).print(table)
    if any(finding.grade == FAILED for finding in findings):
        raise typer.Exit(_FAILED)
