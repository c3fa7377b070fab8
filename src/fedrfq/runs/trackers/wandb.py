"""Weights & Biases, offline: files in the run's directory, for `wandb sync` to send if you want."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.tracker import Tracker, settings


class WeightsAndBiases(Tracker[Any]):
    """Writes a run of Weights & Biases; nothing is sent unless WANDB_MODE says online."""

    package = "wandb"

    def open(self, run: RecordedRun) -> Any:
        """Begin the run, or go on with the one of that name."""
        import wandb

        return wandb.init(
            project=run.experiment.name,
            name=run.path.name,
            id=run.path.name,
            group=run.experiment.name,
            config=settings(run),
            dir=str(run.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def log(self, opened: Any, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the round as their step."""
        opened.log(dict(figures), step=number)

    def close(self, opened: Any, status: str) -> None:
        """Finish the run."""
        opened.finish(exit_code=int(status == "failed"))
