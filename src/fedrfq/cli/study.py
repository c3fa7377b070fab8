"""What the commands for studies do: carry a study out, with progress bars, and show its tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrfq import plugins
from fedrfq.cli.study_options import StudyOptions
from fedrfq.cli.terminal import command_line, count, interruptible, progress, say, wide_console
from fedrfq.files.strict_json import to_json
from fedrfq.paper.kinds import plan
from fedrfq.runs.session import pick_device
from fedrfq.studies.carry_out import Training, Watcher, carry_out
from fedrfq.studies.grid import Grid, GridStep
from fedrfq.studies.plan import Plan, Progress
from fedrfq.studies.study import Study

# The bar counts in thousandths where what is computed is not made of runs.
_STEPS = 1000
_ERRORS = Console(stderr=True)


def load(options: StudyOptions, source: str | Path, **more: Any) -> Study:
    """Read a study, as `Study.load` does, with the seeds and labels of the command line."""
    return Study.load(source, seeds=options.seeds, only=options.labels(), **more)


def run(
    options: StudyOptions, study: Study, folder: Path, words: Sequence[str], *, models: bool
) -> None:
    """Train what is missing, then write the tables and figures into the folder, and show them.

    After Ctrl-C, SIGTERM or a crash the same command continues. `words` are those of the command
    that decide what is studied.
    """
    wanted = plan(study)
    words = [*words, *options.words()]
    bars = _Bars(command_line(*words, "--out", options.out, *plugins.options()))
    device = pick_device(options.device, options.deterministic)
    training = Training(
        options.out, device, options.max_clients, models, options.resume, watcher=bars
    )
    if options.dry_run:
        _dry_run(wanted, training)
        return
    # The same wherever the program is installed.
    command = shlex.join(["fedrfq", *words, *plugins.options()])
    result = carry_out(wanted, training, folder, command)
    console = wide_console()
    if study.claim:
        say(console, f"{study.papers_claim}\n")
    for sheet in result.sheets:
        console.print(sheet.printed())
        say(console, f"{sheet.note}\n")
    names = ["table.csv", "table.md", *(path.name for path in result.pictures)]
    say(console, f"wrote {', '.join([str(folder / 'table.json'), *names])}")
    if options.json:
        sys.stdout.write(to_json(result.whole) + "\n")


def _dry_run(wanted: Plan, training: Training) -> None:
    """Say how many runs there are, and how many of them are done."""
    if wanted.before:
        grid = training.grid(wanted.before)
        _say_how_far(grid, f"{wanted.before_name}: ")
        # Which runs follow depends on these: it is known once these have ended.
        if grid.left:
            distinct = {experiment.hash() for experiment in wanted.experiments}
            say(_ERRORS, f"then {count(len(distinct), 'run')} with the best λ")
            return
        wanted = wanted.after(grid.ended)
    if wanted.experiments:
        _say_how_far(training.grid(wanted.experiments))
    else:
        say(_ERRORS, "nothing to train: this study is computed directly")


def _say_how_far(grid: Grid, prefix: str = "") -> None:
    say(
        _ERRORS,
        f"{prefix}{count(len(grid.wanted), 'run')}, {len(grid.ended)} of them done; "
        f"{grid.left} to train in {count(len(grid.stacks), 'stack')}",
    )


class _Bars(Watcher):
    """Follows a study with progress bars; `again` is the command that continues it."""

    def __init__(self, again: str) -> None:
        self.again = again

    @contextmanager
    def training(self, grid: Grid, what: str) -> Iterator[Callable[[GridStep], None]]:
        prefix = f"{what}: " if what else ""

        def last_words() -> str:
            done = f"{len(grid.ended)} of {len(grid.wanted)} runs done"
            return f"{prefix}stopped with {done}; continue with: {self.again}"

        _say_how_far(grid, prefix)
        with interruptible(last_words), progress(_ERRORS) as bar:
            task = bar.add_task(
                f"{prefix}training", total=grid.rounds, completed=grid.completed(), figures=""
            )
            update = partial(bar.update, task)
            yield lambda step: update(
                completed=step.completed,
                description=f"{prefix}{step.what}",
                figures=step.figures,
            )
            update(completed=grid.completed(), description=f"{prefix}done", figures="")
        # A run that diverged is a result like any other, but must not go unnoticed.
        for ended in grid.ended.values():
            if ended.diverged:
                say(_ERRORS, f"diverged: {ended.run.path}: {ended.diverged}")

    @contextmanager
    def measuring(self) -> Iterator[Progress]:
        stopped = "stopped; the runs are kept, and the same command continues from them"
        with interruptible(lambda: stopped), progress(_ERRORS, "‰") as bar:
            update = partial(bar.update, bar.add_task("measuring", total=_STEPS, figures=""))
            yield lambda share, what: update(completed=round(_STEPS * share), description=what)
            update(completed=_STEPS, description="done")
