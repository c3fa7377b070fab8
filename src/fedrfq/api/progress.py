"""A progress bar for runs that are started from Python."""

from __future__ import annotations

from rich.progress import Progress, TaskID

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.runs.callbacks import Callback
from fedrfq.runs.recorded_run import RecordedRun


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
