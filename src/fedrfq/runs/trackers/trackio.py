"""Trackio: a local database of its own (TRACKIO_DIR); `trackio show` serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.tracker import Tracker, settings


class Trackio(Tracker[Any]):
    """Writes a run of Trackio on this machine; nothing is sent."""

    package = "trackio"

    def open(self, run: RecordedRun) -> Any:
        """Begin the run, or go on with the one of that name."""
        import trackio

        return trackio.init(
            project=run.experiment.name,
            name=run.path.name,
            group=run.experiment.name,
            config=settings(run),
            resume="allow",
            embed=False,
        )

    def log(self, opened: Any, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the round as their step."""
        opened.log(dict(figures), step=number)

    def close(self, opened: Any, status: str) -> None:
        """Finish the run."""
        opened.finish()
