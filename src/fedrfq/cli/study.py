"""What the commands for studies share: options, and carrying a study out from file to tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedrfq import plugins
from fedrfq.cli.terminal import (
    INTERRUPTED,
    command_line,
    count,
    progress,
    say,
    terminated_as_interrupt,
    wide_console,
)
from fedrfq.errors import UserError
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.files.strict_json import to_json

if TYPE_CHECKING:
    from fedrfq.experiment import Experiment
    from fedrfq.studies.grid import EndedRun, Grid
    from fedrfq.studies.plan import Plan, StudyResult
    from fedrfq.studies.study import Study

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
# The bar counts in thousandths where what is computed is not made of runs.
_STEPS = 1000


@dataclass(frozen=True)
class StudyCommand:
    """A command that carries out a study: its words, and the options that all such commands have.

    `words` are those that decide what is studied, as they stand on a command line, less --out.
    """

    words: Sequence[str]
    out: Path
    device: str
    json: bool
    max_clients: int | None
    dry_run: bool
    models: bool = False  # kept by the kinds that need them, whatever this says
    deterministic: bool = False
    resume: bool = True

    def carry_out(self, study: Study, folder: Path) -> None:
        """Train what is missing, then write the tables and figures into the folder, and show them.

        After Ctrl-C, SIGTERM or a crash the same command continues.
        """
        from fedrfq.paper.kinds import plan

        wanted = plan(study)
        if wanted.before:
            grid = self._train_before(wanted)
            if grid.left:
                return
            wanted = wanted.after(grid.ended)
        # A study without experiments, such as that of a formula, is computed at once.
        ended: dict[str, EndedRun] = {}
        if wanted.experiments:
            ended = self._train(wanted.experiments, self.models or wanted.keep).ended
        elif self.dry_run:
            say(Console(stderr=True), "nothing to train: this study is computed directly")
        if not self.dry_run:
            self._write(study, folder, self._measure(wanted, ended, folder), ended)

    def _train_before(self, wanted: Plan) -> Grid:
        """Train the runs on which the others depend."""
        what = wanted.before_name
        try:
            grid = self._train(wanted.before, models=False, what=f"{what}: ")
        except UserError as error:
            raise UserError(f"{what}: {error} (or leave it out: {wanted.before_switch})") from error
        # Which runs follow depends on these: a dry run knows them once these have ended.
        if grid.left:
            distinct = {experiment.hash() for experiment in wanted.experiments}
            say(Console(stderr=True), f"then {count(len(distinct), 'run')} with the best λ")
        return grid

    def _train(self, experiments: Sequence[Experiment], models: bool, what: str = "") -> Grid:
        """Train all experiments with a progress bar; a dry run leaves the grid as it is.

        Ctrl-C and SIGTERM leave a checkpoint, and the command that continues is printed. Lines
        begin with `what`, which tells the grids of one command apart.
        """
        from fedrfq.runs.session import pick_device
        from fedrfq.studies.grid import MAX_CLIENTS, Grid, locked

        errors = Console(stderr=True)
        device = pick_device(self.device, self.deterministic)
        limit = self.max_clients or MAX_CLIENTS[device.type]
        lock: AbstractContextManager[None] = nullcontext()
        if not self.dry_run:
            # All runs of a grid have one name, which is that of their folder.
            lock = locked(self.out / experiments[0].name)
        # Only who holds the lock knows which runs have ended.
        with lock:
            grid = Grid(experiments, self.out, device, limit, models, resume=self.resume)
            total = len(grid.wanted)
            say(
                errors,
                f"{what}{count(total, 'run')}, {len(grid.ended)} of them done; "
                f"{grid.left} to train in {count(len(grid.stacks), 'stack')}",
            )
            if self.dry_run:
                return grid
            try:
                _advance(grid, errors, what)
            except KeyboardInterrupt:
                grid.checkpoint()
                done = f"{len(grid.ended)} of {total} runs done"
                again = command_line(*self.words, "--out", self.out, *plugins.options())
                say(errors, f"{what}stopped with {done}; continue with: {again}")
                raise typer.Exit(INTERRUPTED) from None
        # A run that diverged is a result like any other, but must not go unnoticed.
        for ended in grid.ended.values():
            if ended.diverged:
                say(errors, f"diverged: {ended.run.path}: {ended.diverged}")
        return grid

    def _measure(self, wanted: Plan, ended: dict[str, EndedRun], folder: Path) -> StudyResult:
        """Compute the tables and figures from the runs that have ended, with a progress bar."""
        from fedrfq.runs.session import pick_device

        with reporting_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        errors = Console(stderr=True)
        try:
            with terminated_as_interrupt(), progress(errors, "‰") as bar:
                task = bar.add_task("measuring", total=_STEPS, figures="")

                def report_progress(share: float, what: str) -> None:
                    bar.update(task, completed=round(_STEPS * share), description=what)

                measured = wanted.show(ended, folder, pick_device(self.device), report_progress)
                bar.update(task, completed=_STEPS, description="done")
                return measured
        except KeyboardInterrupt:
            say(errors, "stopped; the runs are kept, and the same command continues from them")
            raise typer.Exit(INTERRUPTED) from None

    def _write(
        self, study: Study, folder: Path, measured: StudyResult, ended: Mapping[str, EndedRun]
    ) -> None:
        """Write and print the tables, with a note on how they were made below the last one."""
        from fedrfq.studies.provenance import describe, provenance
        from fedrfq.studies.sheets import write

        # The same wherever the program is installed.
        command = shlex.join(["fedrfq", *self.words, *plugins.options()])
        made: dict[str, Any] = provenance(command, [run.run for run in ended.values()])
        result = {**measured.whole, "made": made}
        *sheets, last = measured.sheets
        sheets.append(last.with_note(describe(made)))
        title = study.title
        console = wide_console()
        if study.claim:
            claim = f"The paper: {study.claim}"
            title += f"\n\n{claim}"
            say(console, f"{claim}\n")
        write(folder, title, sheets, result, measured.rows)
        for sheet in sheets:
            console.print(sheet.printed())
            say(console, f"{sheet.note}\n")
        names = ["table.csv", "table.md", *(path.name for path in measured.pictures)]
        say(console, f"wrote {', '.join([str(folder / 'table.json'), *names])}")
        if self.json:
            sys.stdout.write(to_json(result) + "\n")


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
