"""Carrying a study out: its runs are trained, measured, and written as tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.studies.grid import EndedRun, Grid, GridStep, locked
from fedrfq.studies.plan import Plan, Progress, StudyResult
from fedrfq.studies.provenance import describe, provenance
from fedrfq.studies.sheets import write


class Watcher:
    """Follows a study while it is carried out. This one says nothing."""

    @contextmanager
    def training(self, grid: Grid, what: str) -> Iterator[Callable[[GridStep], None]]:
        """Follow the training of a grid: what this yields is called after each round.

        `what` tells the grids of one study apart.
        """
        yield lambda step: None

    @contextmanager
    def measuring(self) -> Iterator[Progress]:
        """Follow the making of tables and pictures."""
        yield lambda share, what: None


@dataclass(frozen=True)
class Training:
    """How a study's runs are trained; what is not said here is as in `Grid`.

    Trained models are kept if `models` is true, and where the kind of the study needs them.
    """

    out: Path
    device: torch.device
    max_clients: int | None = None
    models: bool = False
    resume: bool = True
    dataset: Dataset | None = None
    watcher: Watcher = field(default_factory=Watcher)

    def grid(self, experiments: Sequence[Experiment], *, models: bool = False) -> Grid:
        """Look up how far the runs of some experiments are."""
        where = (self.out, self.device, self.max_clients)
        return Grid(experiments, *where, models, resume=self.resume, dataset=self.dataset)

    def train(
        self, experiments: Sequence[Experiment], what: str = "", *, models: bool = False
    ) -> dict[str, EndedRun]:
        """Train all experiments that have not ended, and return all runs by experiment hash."""
        # All runs of a grid have one name, which is that of their folder. Only who holds its lock
        # knows which runs have ended.
        with locked(self.out / experiments[0].name):
            grid = self.grid(experiments, models=models)
            with self.watcher.training(grid, what) as tell:
                try:
                    for step in grid.advance():
                        tell(step)
                except KeyboardInterrupt:
                    grid.checkpoint()
                    raise
            return grid.ended


def carry_out(wanted: Plan, training: Training, folder: Path, command: str) -> StudyResult:
    """Train what is missing, then write tables and pictures into the folder, and return them.

    The same call goes on after an interrupt or a crash. `command` is what made it, in words.
    """
    if wanted.before:
        wanted = wanted.after(_train_before(wanted, training))
    # A study without experiments, such as that of a formula, is computed at once.
    ended: dict[str, EndedRun] = {}
    if wanted.experiments:
        ended = training.train(wanted.experiments, models=training.models or wanted.keep)
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with training.watcher.measuring() as tell:
        result = wanted.show(ended, folder, training.device, tell)
    made = provenance(command, [end.run for end in ended.values()])
    # How it was made stands below the last table.
    *sheets, last = result.sheets
    sheets.append(last.with_note(describe(made)))
    result = replace(result, sheets=sheets, whole={**result.whole, "made": made})
    title = "\n\n".join(filter(None, [wanted.study.title, wanted.study.papers_claim]))
    write(folder, title, result.sheets, result.whole, result.rows)
    return result


def _train_before(wanted: Plan, training: Training) -> dict[str, EndedRun]:
    """Train the runs on which the others depend."""
    what = wanted.before_name
    try:
        return training.train(wanted.before, what)
    except UserError as error:
        raise UserError(f"{what}: {error} (or leave it out: {wanted.before_switch})") from error
