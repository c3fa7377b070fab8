"""Progress bars for runs and studies that are started from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, TaskID

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.runs.callbacks import Callback
from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.studies.carry_out import Watcher
from fedrfq.studies.grid import Grid, GridStep


class ProgressBar(Callback):
    """Shows the rounds done and the newest accuracy, in a terminal or a notebook."""

    def __init__(self) -> None:
        self._bar: Progress
        self._task: TaskID

    def on_start(self, run: RecordedRun) -> None:
        self._bar = Progress()
        self._task = self._bar.add_task("training", total=run.experiment.rounds)
        self._bar.start()

    def on_round(self, run: RecordedRun, record: RoundRecord) -> None:
        said = f"accuracy {record.accuracy_mean:.2f} %"
        self._bar.update(self._task, completed=record.round, description=said)

    def on_end(self, run: RecordedRun, status: str) -> None:
        self._bar.stop()


class StudyBars(Watcher):
    """Shows the rounds of all runs of a study, and which are being trained."""

    @contextmanager
    def training(self, grid: Grid, what: str) -> Iterator[Callable[[GridStep], None]]:
        with Progress() as bar:
            task = bar.add_task(what or "training", total=grid.rounds, completed=grid.completed())

            def shown(step: GridStep) -> None:
                words = f"{what}: {step.what}" if what else step.what
                bar.update(task, completed=step.completed, description=words)

            yield shown
