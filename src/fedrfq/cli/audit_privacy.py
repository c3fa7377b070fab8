"""`fedrfq audit-privacy`: attack what a run's clients uploaded, and say what that won."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.modules import give_modules
from fedrfq.cli.options import Device, Json, Modules, RunPath
from fedrfq.cli.terminal import progress, say, terminated_as_interrupt, wide_console
from fedrfq.files.strict_json import to_json

if TYPE_CHECKING:
    from fedrfq.leakage.record import LeakageFigures


def audit_privacy(
    path: RunPath,
    shadows: Annotated[
        int,
        typer.Option(
            min=3,
            max=1000,
            help="Shadow federations to train beside the run; more are slower and attack better.",
        ),
    ] = 16,
    questions: Annotated[
        int,
        typer.Option(
            min=100,
            max=1_000_000,
            help="Questions to noisy uploads by who knows all other samples: more are more exact.",
        ),
    ] = 2000,
    pictures: Annotated[
        int,
        typer.Option(min=0, max=50, help="Uploads to turn into images: those of fewest samples."),
    ] = 6,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the attacks: targets, shadows, pictures.")
    ] = 0,
    device: Device = "auto",
    json: Json = False,
    module: Modules = None,
) -> None:
    """Attack what a run's clients uploaded, and say what that won.

    Was a given sample among a client's? Shadow federations, trained beside the run, tell what its
    upload would be with it and without it. What did a client's images look like? Images are made
    from uploads. What do classes and counts alone reveal? The data must be there, because the
    attacker's answers are compared with them. The figures are written to leakage.json in the run
    directory, and pictures to leakage.png; `fedrfq report` shows both.

    Example: fedrfq audit-privacy latest --shadows 32
    """
    from fedrfq.leakage.audit import LeakageAudit
    from fedrfq.runs.run_directory import RunDirectory
    from fedrfq.runs.session import pick_device

    run = RunDirectory.open(path)
    give_modules(run, module or [])
    with terminated_as_interrupt(), progress(Console(stderr=True), "steps") as bar:
        task = bar.add_task("reading the run", total=None, figures="")

        def told(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        audit = LeakageAudit.of(run, shadows, questions, seed, pictures, pick_device(device), told)
        found, images = audit.made()
    written = found.save(run.path, images)
    _show(found)
    say(Console(), f"wrote {', '.join(map(str, written))}")
    if json:
        sys.stdout.write(to_json(asdict(found)) + "\n")


def _show(found: LeakageFigures) -> None:
    from fedrfq.leakage.words import counts_text, inversion_rows, membership_rows

    console = wide_console()
    for title, (header, *rows) in (
        ("Was a sample among the client's?", membership_rows(found)),
        ("Images from uploads", inversion_rows(found)),
    ):
        if rows:
            table = Table(*header, title=title, title_justify="left")
            for row in rows:
                table.add_row(*row)
            console.print(table)
    for line in (*counts_text(found.counts), *found.notes):
        say(console, line)
