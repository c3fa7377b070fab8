"""What the commands for studies share: options, training all runs, and showing the results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedrfq.cli.terminal import (
    INTERRUPTED,
    progress,
    say,
    terminated_as_interrupt,
    wide_console,
)
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.files.locks import exclusive
from fedrfq.files.strict_json import to_json
from fedrfq.studies.sheets import Sheet

if TYPE_CHECKING:
    from fedrfq.experiment import Experiment
    from fedrfq.studies.grid import Grid

Out = Annotated[
    Path,
    typer.Option(help="Runs and tables go to OUT/NAME; runs that have ended there are kept."),
]
MaxClients = Annotated[
    int | None,
    typer.Option(
        "--most",
        min=1,
        help="How many clients to train at once, to limit memory. Default: 200, or 4000 on CUDA.",
    ),
]
Models = Annotated[bool, typer.Option(help="Keep the trained models of runs that have ended.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be trained; write nothing.")
]


def open_grid(
    experiments: Iterable[Experiment],
    out: Path,
    *,
    device: str,
    max_clients: int | None,
    models: bool,
    deterministic: bool,
    resume: bool = True,
) -> Grid:
    """Return the grid of these experiments, with the runs that have already ended in `out`."""
    from fedrfq.runs.session import pick_device
    from fedrfq.studies.grid import MAX_CLIENTS, Grid

    torch_device = pick_device(device, deterministic)
    limit = max_clients or MAX_CLIENTS[torch_device.type]
    return Grid(experiments, out, torch_device, limit, models, resume=resume)


def train(grid: Grid, dry_run: bool, again: str, what: str = "") -> bool:
    """Train the whole grid with a progress bar; return False if this is a dry run.

    Ctrl-C and SIGTERM leave a checkpoint, and `again` is printed as the command that continues.
    Lines begin with `what`, which tells the grids of one command apart.
    """
    errors = Console(stderr=True)
    total = len(grid.wanted)
    left = total - len(grid.ended)
    say(
        errors,
        f"{what}{total} runs, {len(grid.ended)} of them done; "
        f"{left} to train in {len(grid.stacks)} stacks",
    )
    if dry_run:
        return False
    with _locked(grid):
        try:
            _advance(grid, errors, what)
        except KeyboardInterrupt:
            grid.checkpoint()
            done = f"{len(grid.ended)} of {total} runs done"
            say(errors, f"{what}stopped with {done}; continue with: {again}")
            raise typer.Exit(INTERRUPTED) from None
    # A run that diverged is a result like any other, but must not go unnoticed.
    for ended in grid.ended.values():
        if ended.diverged:
            say(errors, f"diverged: {ended.run.path}: {ended.diverged}")
    return True


def _advance(grid: Grid, errors: Console, what: str) -> None:
    with terminated_as_interrupt(), progress(errors) as bar:
        task = bar.add_task(
            f"{what}training", total=grid.rounds, completed=grid.completed(), figures=""
        )
        for step in grid.advance():
            bar.update(
                task,
                completed=step.completed,
                description=f"{what}{step.what}",
                figures=step.figures,
            )
        bar.update(task, completed=grid.completed(), description=f"{what}done", figures="")


@contextmanager
def _locked(grid: Grid) -> Iterator[None]:
    """Keep a second process out of the same grid: each would write into the other's runs."""
    # All runs of a grid have one name, which is that of their folder.
    folder = grid.out / next(iter(grid.wanted.values())).name
    lock = folder / ".lock"
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # A file rather than the folder: across machines NFS only honours locks on files.
        lock.touch()
    with exclusive(lock, "another --out", "wait for it, or choose another --out"):
        yield


def show(
    folder: Path,
    sheets: Sequence[Sheet],
    pictures: Sequence[Path],
    json_result: Mapping[str, Any] | None,
) -> None:
    """Print the tables and name the files that were written; end with the JSON, if there is any."""
    console = wide_console()
    for sheet in sheets:
        console.print(sheet.printed())
        say(console, f"{sheet.note}\n")
    files = [str(folder / "table.json"), "table.csv", "table.md", *(path.name for path in pictures)]
    say(console, f"wrote {', '.join(files)}")
    if json_result is not None:
        sys.stdout.write(to_json(json_result) + "\n")
