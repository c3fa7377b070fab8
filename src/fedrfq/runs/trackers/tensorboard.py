"""TensorBoard: events in the run's directory. `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrfq.files import toml
from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.tracker import Tracker

FOLDER = "tensorboard"


class TensorBoard(Tracker[Any]):
    """Writes events that TensorBoard reads."""

    package = "tensorboard"

    def open(self, run: RecordedRun) -> Any:
        """Begin a file of events; rounds that will be trained again are dropped from the others."""
        from torch.utils.tensorboard import SummaryWriter

        done = len(run.directory.rounds())
        writer = SummaryWriter(str(run.path / FOLDER), purge_step=done + 1 if done else None)
        text = toml.dump(run.experiment.table())
        writer.add_text("experiment", f"```toml\n{text}\n```")
        return writer

    def log(self, opened: Any, number: int, figures: Mapping[str, float]) -> None:
        """Write the figures, so that they can be looked at now."""
        for name, value in figures.items():
            opened.add_scalar(name, value, number)
        opened.flush()

    def close(self, opened: Any, status: str) -> None:
        """Close the file."""
        opened.close()
