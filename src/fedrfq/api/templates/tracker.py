"""example-tracker: writes a line for each round into a text file in the run's directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import fedrfq
from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers import Tracker


@fedrfq.register("tracker", "example-tracker")
class ExampleTracker(Tracker[Path]):
    """Writes example-tracker.txt. A tracker that fails is told nothing more; the run goes on."""

    # A package that must be installed; leave it empty if there is none.
    package = ""

    def open(self, run: RecordedRun) -> Path:
        """Begin, or go on after a stop; what is returned is given to `log` and `close`."""
        path = run.path / "example-tracker.txt"
        path.touch()
        return path

    def log(self, opened: Path, number: int, figures: Mapping[str, float]) -> None:
        """Note the figures of a round; those of client 3 are named clients/03/…."""
        with opened.open("a", encoding="utf-8") as file:
            file.write(f"{number} {figures['accuracy_mean']:.2f}\n")

    def close(self, opened: Path, status: str) -> None:
        """End: the run is "finished", "stopped" or "failed"."""
        with opened.open("a", encoding="utf-8") as file:
            file.write(f"{status}\n")
