"""`fedrfq runs`: the runs that there are, newest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedrfq.cli.terminal import say, wide_console

if TYPE_CHECKING:
    from fedrfq.runs.progress import RunProgress


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder to look in. Default: runs.")
    ] = Path("runs"),
    most: Annotated[int, typer.Option("--most", min=1, help="How many runs to list at most.")] = 50,
) -> None:
    """List the runs that there are, newest first.

    Shows how far each of them is, and whether a process is training it. `latest` stands for the
    newest one wherever a run is asked for, such as in `fedrfq report latest`.

    Example: fedrfq runs
    """
    from fedrfq.runs.find_runs import newest_first, runs_in
    from fedrfq.runs.progress import RunProgress

    found = newest_first(runs_in([folder]))
    table = Table("started (UTC)", "method", "data", "clients", "seed", "rounds", "accuracy %")
    table.add_column("state")
    table.add_column("directory", overflow="fold")
    for path in found[:most]:
        # As texts: brackets in a name are not markup.
        table.add_row(*map(Text, _cells(RunProgress.read(path))))
    console = wide_console()
    console.print(table)
    if len(found) > most:
        say(console, f"the newest {most} of {len(found)} runs; --most {len(found)} lists all")


def _cells(run: RunProgress) -> list[str]:
    from fedrfq.runs.progress import duration

    when = run.started
    if when:
        when = f"{when[:4]}-{when[4:6]}-{when[6:8]} {when[9:11]}:{when[11:13]}:{when[13:15]}"
    accuracy = "–" if run.accuracy is None else f"{run.accuracy:.2f}"
    state = run.state
    if run.seconds_left is not None:
        state += f", {duration(run.seconds_left)} left"
    done = f"{run.done} of {run.rounds}"
    facts = [str(run.clients), str(run.seed), done, accuracy, state]
    directory = "".join(letter if letter.isprintable() else "·" for letter in str(run.path))
    return [when, run.method, run.data, *facts, directory]
