"""What Weights & Biases and Trackio share: `init` begins a run, which then logs and finishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.tracker import Tracker, settings


class InitTracker(Tracker[Any]):
    """Writes to a run that the package's `init` begins; a subclass calls it."""

    def about(self, run: RecordedRun) -> dict[str, Any]:
        """Return what `init` takes: the run's names and settings, and that it may go on."""
        return {
            "project": run.experiment.name,
            "name": run.path.name,
            "group": run.experiment.name,
            "config": settings(run),
            "resume": "allow",
        }

    def log(self, opened: Any, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the round as their step."""
        opened.log(dict(figures), step=number)

    def close(self, opened: Any, status: str) -> None:
        """Finish the run."""
        opened.finish()
