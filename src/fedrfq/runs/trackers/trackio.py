"""Trackio: a local database of its own (TRACKIO_DIR); `trackio show` serves it."""

from __future__ import annotations

from typing import Any

from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.init_tracker import InitTracker


class Trackio(InitTracker):
    """Writes a run of Trackio on this machine; nothing is sent."""

    package = "trackio"

    def open(self, run: RecordedRun) -> Any:
        """Begin the run, or go on with the one of that name."""
        import trackio

        return trackio.init(**self.about(run), embed=False)
