"""`fedrfq doctor`: what keeps a party from taking part in its federation, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedrfq.cli.completion import complete, dataset_names
from fedrfq.cli.data_preview import show_data
from fedrfq.cli.terminal import say
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.node.data_preview import DataPreview

# The exit code when something would keep the party from taking part.
_FAILED = 1


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a party.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="The data that a client is to train on: show its classes and what it would send.",
            autocompletion=complete(dataset_names),
        ),
    ] = "",
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE.html",
            help="With --data: also write its classes and pictures to a page, readable by you "
            "alone.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for each server to answer.")
    ] = 5.0,
) -> None:
    """Check that a party can take part in its federation.

    Checks the party's folder, keys, certificates, clock, port and disk, and whether it can reach
    every server. With --data also a client's data against the data contract: samples and a picture
    of each class, and what would be uploaded; nothing is sent. The exit code is 1 if something
    would keep the party from taking part; the table then says what to do. The check cannot tell
    whether this clock agrees with the others', or whether the others can reach this machine.

    Example: fedrfq doctor consortium/client-0 --data scans
    """
    if page is not None and not data:
        raise UserError("--page shows a client's data: give --data, too")
    from fedrfq.node.ops.doctor import FAILED, OK, WARNING, Finding, examine
    from fedrfq.node.storage.party_folder import FEDERATION

    findings = list(examine(folder, patience_s=timeout))
    found = None
    # Without a federation nobody knows what the data must be.
    if data and (folder / FEDERATION).exists():
        try:
            found = _preview(folder, data)
            findings.append(Finding("data", OK, found.about))
            if found.window is not None:
                grade = WARNING if found.window.suspicious else OK
                findings.append(Finding("window", grade, found.window.about))
        except UserError as error:
            findings.append(Finding("data", FAILED, str(error)))
    table = Table("check", "result", Column("details", overflow="fold"))
    for finding in findings:
        table.add_row(finding.what, finding.grade, finding.note)
    console = Console(markup=False)
    console.print(table)
    if found is not None:
        show_data(found, console)
        if page is not None:
            _write(found, page)
            say(console, f"wrote {page}: it shows samples, so keep it to yourself")
    if any(finding.grade == FAILED for finding in findings):
        raise typer.Exit(_FAILED)


def _write(found: DataPreview, page: Path) -> None:
    from fedrfq.cli.data_page import data_page
    from fedrfq.node.storage.party_folder import write

    write(page, data_page(found).encode(errors="replace"), 0o600)


def _preview(folder: Path, data: str) -> DataPreview:
    from fedrfq.node.data_preview import preview
    from fedrfq.node.membership.identity import load

    return preview(load(folder), data)
