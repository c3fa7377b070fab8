"""Weights & Biases, offline: files in the run's directory, for `wandb sync` to send if you want."""

from __future__ import annotations

import os
from typing import Any

from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.init_tracker import InitTracker


class WeightsAndBiases(InitTracker):
    """Writes a run of Weights & Biases; nothing is sent unless WANDB_MODE says online."""

    package = "wandb"

    def open(self, run: RecordedRun) -> Any:
        """Begin the run, or go on with the one of that name."""
        import wandb

        return wandb.init(
            **self.about(run),
            id=run.path.name,
            dir=str(run.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def close(self, opened: Any, status: str) -> None:
        """Finish the run."""
        opened.finish(exit_code=int(status == "failed"))
