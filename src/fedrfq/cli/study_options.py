"""What the commands that train grids of runs share: options, the way to the grid's end, and how results are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedrfq.cli.terminal import INTERRUPTED, progress, say, terminated_as_interrupt
from fedrfq.files.atomic import writing
from fedrfq.files.locks import alone
from fedrfq.files.strict_json import to_json
from fedrfq.studies.sheets import Sheet

if TYPE_CHECKING:
    from fedrfq.experiment import Experiment
    from fedrfq.studies.grid import Grid

_WIDTH = 160  # of what is printed to a file

Out = Annotated[
    Path,
    typer.Option(help="Runs and tables go to OUT/NAME; what is finished there is not run again."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="End with one JSON object on the last line of standard output."),
]
Deterministic = Annotated[
    bool, typer.Option(help="The same bytes again on CUDA, at some cost in speed.")
]
Most = Annotated[
    int | None,
    typer.Option(
        min=1, help="Clients trained at once, to bound memory; 200 unless given, 4000 on CUDA."
    ),
]
Models = Annotated[bool, typer.Option(help="Keep the trained models of finished runs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be run; write nothing.")]


def grid_of(
    experiments: Iterable[Experiment],
    out: Path,
    device: str,
    most: int | None,
    models: bool,
    deterministic: bool,
    resume: bool = True,
) -> Grid:
    from fedrfq.runs.session import pick_device
    from fedrfq.studies.grid import MOST_CLIENTS, Grid

    where = pick_device(device, deterministic)
    return Grid(experiments, out, where, most or MOST_CLIENTS[where.type], models, resume)


def drive(grid: Grid, dry_run: bool, again: str) -> bool:
    """The grid to its end with a progress bar; Ctrl-C and SIGTERM leave a checkpoint and say how to go on."""
    errors = Console(stderr=True)
    left = len(grid.wanted) - len(grid.ended)
    say(
        errors,
        f"{len(grid.wanted)} runs, {len(grid.ended)} of them done; {left} to train in {len(grid.stacks)} stacks",
    )
    if dry_run:
        return False
    with _alone(grid):
        try:
            _advance(grid, errors)
        except KeyboardInterrupt:
            grid.checkpoint()
            say(
                errors,
                f"stopped with {len(grid.ended)} of {len(grid.wanted)} runs done; go on with: {again}",
            )
            raise typer.Exit(INTERRUPTED) from None
    for ended in grid.ended.values():
        if ended.diverged:
            say(errors, f"diverged: {ended.run.path}: {ended.diverged}")
    return True


def _advance(grid: Grid, errors: Console) -> None:
    with terminated_as_interrupt(), progress(errors) as bar:
        task = bar.add_task("training", total=grid.rounds, completed=grid.completed(), figures="")
        for step in grid.advance():
            bar.update(task, completed=step.completed, description=step.what, figures=step.figures)
        bar.update(task, completed=grid.completed(), description="done", figures="")


@contextmanager
def _alone(grid: Grid) -> Iterator[None]:
    """Two of the same grid at once would write into each other's runs."""
    folder = grid.out / next(iter(grid.wanted.values())).name
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (
            folder / ".lock"
        ).touch()  # a file: NFS keeps machines apart by locks of files, not of folders
    with alone(folder / ".lock", "another --out", "wait for it, or choose another --out"):
        yield


def show(
    folder: Path, sheets: Sequence[Sheet], pictures: Sequence[Path], whole: Mapping[str, Any] | None
) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for sheet in sheets:
        console.print(sheet.printed())
        say(console, f"{sheet.note}\n")
    files = [str(folder / "table.json"), "table.csv", "table.md", *(path.name for path in pictures)]
    say(console, f"wrote {', '.join(files)}")
    if whole is not None:
        sys.stdout.write(to_json(whole) + "\n")
