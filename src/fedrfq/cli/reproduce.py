"""`fedrfq reproduce`: the tables and figures of the paper, and our own, each from one study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.completion import complete, study_names
from fedrfq.cli.options import Device, Json
from fedrfq.cli.study import DryRun, MaxClients, StudyCommand
from fedrfq.errors import UserError

Name = Annotated[
    str,
    typer.Argument(
        help="The name of a study, such as table1, or the path of one. Without it, list them.",
        show_default=False,
        autocompletion=complete(study_names),
    ),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="How many seeds. Default: as many as the study says.")
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Run a small version: minutes on two cores, with data that is installed."
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume/--restart", help="Continue runs that have not ended, or restart them."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="AXIS=LABEL", help="Run only this label of an axis. Repeatable."),
]
Out = Annotated[
    Path,
    typer.Option(
        help="Results go to OUT/reproduce/NAME, and the runs, which studies share, "
        "to OUT/reproduced."
    ),
]


def reproduce(
    name: Name = "",
    seeds: Seeds = None,
    device: Device = "auto",
    quick: Quick = False,
    resume: Resume = True,
    only: Only = None,
    out: Out = Path("runs"),
    max_clients: MaxClients = None,
    json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure of the paper, with the paper's claim beside the measurement.

    Writes table.md, table.csv, table.json and figure.png. After an interruption the same command
    continues. A run that has ended is never trained again, whichever study asks for it.

    Example: fedrfq reproduce table1 --quick
    """
    from fedrfq.studies.study import Study

    if not name:
        _list_studies()
        return
    words = ["reproduce", name]
    if quick:
        words.append("--quick")
    if seeds:
        words += ["--seeds", str(seeds)]
    for label in only or []:
        words += ["--only", label]
    # All runs share one name, so that a run which several studies need is trained once.
    study = Study.load(name, quick, seeds, _labels(only or []), runs="reproduced")
    command = StudyCommand(words, out, device, json, max_clients, dry_run, resume=resume)
    command.carry_out(study, out / "reproduce" / study.name)


def _labels(only: list[str]) -> dict[str, list[str]]:
    """Return the labels of each axis that `--only` names."""
    labels: dict[str, list[str]] = {}
    for given in only:
        axis, equals, label = given.partition("=")
        if not equals:
            raise UserError(
                f"--only takes AXIS=LABEL, for example --only method=fedrfq; found '{given}'"
            )
        labels.setdefault(axis.strip(), []).append(label.strip())
    return labels


def _list_studies() -> None:
    from fedrfq.studies.study import Study, names

    table = Table("study", "what it reproduces")
    for name in names():
        table.add_row(name, Study.load(name).title)
    Console(markup=False).print(table)
