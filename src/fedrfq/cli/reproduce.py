"""`fedrfq reproduce`: the paper's tables and figures, and ours, each from one recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.study_options import Device, DryRun, Json, Most, drive, grid_of, show
from fedrfq.cli.terminal import INTERRUPTED, progress, say, terminated_as_interrupt
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.studies.grid import EndedRun
    from fedrfq.studies.recipe import Plan, Recipe, Shown

_STEPS = 1000  # of the bar, where what is computed is no run

Name = Annotated[
    str,
    typer.Argument(
        help="A recipe (table1, rounds, …) or a path to one; none lists them.", show_default=False
    ),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="How many, where the recipe's number is not wanted.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="The same in small: minutes on two cores, on embedded data.")
]
Resume = Annotated[
    bool,
    typer.Option("--resume/--restart", help="Go on with runs left half-way, or begin these again."),
]
Only = Annotated[
    list[str] | None, typer.Option(metavar="AXIS=LABEL", help="Of an axis, this label; repeatable.")
]
Out = Annotated[
    Path,
    typer.Option(
        help="Results go to OUT/reproduce/NAME, the runs that all share to OUT/reproduced."
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
    most: Most = None,
    json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or a figure, the paper's claim beside what is measured.

    Runs are stacked and taken up where an earlier call stopped; one that has ended is never computed again, whichever
    recipe asks for it. Writes table.md, .csv, .json and figure.png.

    Example: fedrfq reproduce table1 --quick
    """
    from fedrfq.paper.kinds import plan
    from fedrfq.studies.recipe import Recipe

    if not name:
        _list()
        return
    recipe = Recipe.load(name, quick, seeds, _labels(only or []))
    wanted = plan(recipe)
    command = (
        f"fedrfq reproduce {name}" + " --quick" * quick + (f" --seeds {seeds}" if seeds else "")
    )
    command += "".join(f" --only '{label}'" for label in only or [])
    ended: dict[str, EndedRun] = {}
    if wanted.experiments:
        grid = grid_of(
            wanted.experiments, out, device, most, wanted.keep, deterministic=False, resume=resume
        )
        if not drive(grid, dry_run, f"{command} --out {out}"):
            return
        ended = grid.ended
    elif dry_run:
        say(Console(stderr=True), "no runs: it is computed at once")
        return
    folder = out / "reproduce" / recipe.name
    found = _shown(wanted, ended, folder, device)
    _write(folder, recipe, found, ended, command, json)


def _labels(only: list[str]) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    for given in only:
        axis, equals, label = given.partition("=")
        if not equals:
            raise UserError(
                f"--only takes AXIS=LABEL, for example --only method=fedrfq; found '{given}'"
            )
        labels.setdefault(axis.strip(), []).append(label.strip())
    return labels


def _list() -> None:
    from fedrfq.studies.recipe import Recipe, names

    table = Table("recipe", "what it gives")
    for name in names():
        table.add_row(name, Recipe.load(name).title)
    Console(markup=False).print(table)


def _shown(wanted: Plan, ended: dict[str, EndedRun], folder: Path, device: str) -> Shown:
    from fedrfq.files.atomic import writing
    from fedrfq.runs.session import pick_device

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    errors = Console(stderr=True)
    try:
        with terminated_as_interrupt(), progress(errors, "‰") as bar:
            task = bar.add_task("measuring", total=_STEPS, figures="")

            def tell(share: float, what: str) -> None:
                bar.update(task, completed=round(_STEPS * share), description=what)

            found = wanted.show(ended, folder, pick_device(device), tell)
            bar.update(task, completed=_STEPS, description="done")
            return found
    except KeyboardInterrupt:
        say(errors, "stopped; the runs are kept, and the same command goes on from them")
        raise typer.Exit(INTERRUPTED) from None


def _write(
    folder: Path, recipe: Recipe, found: Shown, ended: dict[str, EndedRun], command: str, json: bool
) -> None:
    from dataclasses import replace

    from fedrfq.studies.provenance import made, words
    from fedrfq.studies.sheets import write

    how: dict[str, Any] = made(command, [end.run for end in ended.values()])
    whole = {**found.whole, "made": how}
    last = found.sheets[-1]
    sheets = [
        *found.sheets[:-1],
        replace(last, note="\n\n".join(filter(None, [last.note, words(how)]))),
    ]
    if recipe.claim:
        claim = f"The paper: {recipe.claim}"
    else:
        claim = ""
    write(folder, "\n\n".join(filter(None, [recipe.title, claim])), sheets, whole, found.rows)
    console = Console()
    say(console, f"{claim}\n")
    show(folder, sheets, found.pictures, whole if json else None)
