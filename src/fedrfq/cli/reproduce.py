"""`fedrfq reproduce`: the tables and figures of the paper, and our own, each from one study."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.completion import complete, study_names
from fedrfq.cli.study_options import Models, StudyOptions, with_study_options


@with_study_options
def reproduce(
    options: StudyOptions,
    name: Annotated[
        str,
        typer.Argument(
            help="The name of a study, such as table1, or the path of one. Without it, list them.",
            show_default=False,
            autocompletion=complete(study_names),
        ),
    ] = "",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run a small version: minutes on two cores, with data that is installed.",
        ),
    ] = False,
    models: Models = False,
) -> None:
    """Reproduce a table or figure of the paper, with the paper's claim beside the measurement.

    Writes table.md, table.csv, table.json and figure.png to OUT/reproduce/NAME, and the runs, which
    studies share, to OUT/reproduced. After an interruption the same command continues. A run that
    has ended is never trained again, whichever study asks for it.

    Example: fedrfq reproduce table1 --quick
    """
    if not name:
        _list_studies()
        return
    from fedrfq.cli import study

    words = ["reproduce", name]
    if quick:
        words.append("--quick")
    # All runs share one name, so that a run which several studies need is trained once.
    wanted = study.load(options, name, quick=quick, runs="reproduced")
    study.run(options, wanted, options.out / "reproduce" / wanted.name, words, models=models)


def _list_studies() -> None:
    from fedrfq.studies.study import Study, names

    table = Table("study", "what it reproduces")
    for name in names():
        table.add_row(name, Study.load(name).title)
    Console(markup=False).print(table)
