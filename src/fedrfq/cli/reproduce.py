"""`fedrfq reproduce`: the tables and figures of the paper, and our own, each from one recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.completion import complete, recipe_names
from fedrfq.cli.options import Device, Json
from fedrfq.cli.study_options import DryRun, MaxClients, open_grid, show, train
from fedrfq.cli.terminal import (
    INTERRUPTED,
    command_line,
    progress,
    say,
    terminated_as_interrupt,
)
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.studies.grid import EndedRun
    from fedrfq.studies.recipe import Plan, Recipe, StudyResult

# The bar counts in thousandths where what is computed is not made of runs.
_STEPS = 1000

Name = Annotated[
    str,
    typer.Argument(
        help="The name of a recipe, such as table1, or the path of one. Without it, list them.",
        show_default=False,
        autocompletion=complete(recipe_names),
    ),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="How many seeds. Default: as many as the recipe says.")
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
        help="Results go to OUT/reproduce/NAME, and the runs, which recipes share, "
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
    continues. A run that has ended is never trained again, whichever recipe asks for it.

    Example: fedrfq reproduce table1 --quick
    """
    from fedrfq.paper.kinds import plan
    from fedrfq.studies.recipe import Recipe

    if not name:
        _list_recipes()
        return
    recipe = Recipe.load(name, quick, seeds, _labels(only or []))
    wanted = plan(recipe)
    options = _options(quick, seeds, only or [])
    # A recipe without experiments, such as that of a formula, is computed at once.
    ended: dict[str, EndedRun] = {}
    if wanted.experiments:
        grid = open_grid(
            wanted.experiments,
            out,
            device=device,
            max_clients=max_clients,
            models=wanted.keep,
            deterministic=False,
            resume=resume,
        )
        again = command_line("reproduce", name, *options, "--out", out)
        if not train(grid, dry_run, again):
            return
        ended = grid.ended
    elif dry_run:
        say(Console(stderr=True), "nothing to train: this recipe is computed directly")
        return
    folder = out / "reproduce" / recipe.name
    measured = _measure(wanted, ended, folder, device)
    _write(folder, recipe, measured, ended, command=_recorded(name, options), json=json)


def _options(quick: bool, seeds: int | None, only: list[str]) -> list[str]:
    """Return the options that decide what is reproduced, as they are given on a command line."""
    options = []
    if quick:
        options.append("--quick")
    if seeds:
        options += ["--seeds", str(seeds)]
    for label in only:
        options += ["--only", label]
    return options


def _recorded(name: str, options: list[str]) -> str:
    """Return the command as results record it: the same wherever the program is installed."""
    words = ["fedrfq", "reproduce", name]
    # Quoted as results have always recorded it; shlex would quote some labels and not others.
    for position, word in enumerate(options):
        is_label = position > 0 and options[position - 1] == "--only"
        words.append(f"'{word}'" if is_label else word)
    return " ".join(words)


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


def _list_recipes() -> None:
    from fedrfq.studies.recipe import Recipe, names

    table = Table("recipe", "what it reproduces")
    for name in names():
        table.add_row(name, Recipe.load(name).title)
    Console(markup=False).print(table)


def _measure(wanted: Plan, ended: dict[str, EndedRun], folder: Path, device: str) -> StudyResult:
    """Compute the tables and figures from the runs that have ended, with a progress bar."""
    from fedrfq.files.atomic import reporting_write_errors
    from fedrfq.runs.session import pick_device

    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    errors = Console(stderr=True)
    try:
        with terminated_as_interrupt(), progress(errors, "‰") as bar:
            task = bar.add_task("measuring", total=_STEPS, figures="")

            def report_progress(share: float, what: str) -> None:
                bar.update(task, completed=round(_STEPS * share), description=what)

            measured = wanted.show(ended, folder, pick_device(device), report_progress)
            bar.update(task, completed=_STEPS, description="done")
            return measured
    except KeyboardInterrupt:
        say(errors, "stopped; the runs are kept, and the same command continues from them")
        raise typer.Exit(INTERRUPTED) from None


def _write(
    folder: Path,
    recipe: Recipe,
    measured: StudyResult,
    ended: dict[str, EndedRun],
    *,
    command: str,
    json: bool,
) -> None:
    """Write and print the tables, with a note on how they were made below the last one."""
    from fedrfq.studies.provenance import describe, provenance
    from fedrfq.studies.sheets import write

    made: dict[str, Any] = provenance(command, [run.run for run in ended.values()])
    result = {**measured.whole, "made": made}
    *sheets, last = measured.sheets
    sheets.append(replace(last, note=_paragraphs(last.note, describe(made))))
    claim = ""
    if recipe.claim:
        claim = f"The paper: {recipe.claim}"
    write(folder, _paragraphs(recipe.title, claim), sheets, result, measured.rows)
    say(Console(), f"{claim}\n")
    show(folder, sheets, measured.pictures, result if json else None)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
