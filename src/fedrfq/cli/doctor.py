"""fedrfq doctor: what keeps a party from taking part, and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

_FAILED = 1  # the exit code when something would keep the party from taking part


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A party's folder.")],
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that each server has to answer.")
    ] = 5.0,
) -> None:
    """Check a party's folder, keys, certificates, clock, port and disk, and that every server can be reached.

    Exit code 1: something would keep this party from taking part; the line says what to do. It cannot know whether this
    clock agrees with the others', nor whether they can reach this machine.

    Example: fedrfq doctor consortium/server-0
    """
    from fedrfq.node.ops.doctor import FAILED, examine

    table = Table("check", "", Column("found", overflow="fold"))
    findings = list(examine(folder, patience_s=timeout))
    for finding in findings:
        table.add_row(finding.what, finding.grade, finding.note)
    Console(markup=False).print(table)
    raise typer.Exit(_FAILED if any(finding.grade == FAILED for finding in findings) else 0)
