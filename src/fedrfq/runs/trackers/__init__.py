"""Trackers that an experiment may name in `track`: what shows runs of other programs, too."""

from __future__ import annotations

from typing import Any

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment.experiment import tracker_names
from fedrfq.runs.trackers.mlflow import MLflow
from fedrfq.runs.trackers.tensorboard import TensorBoard
from fedrfq.runs.trackers.tracker import Tracker
from fedrfq.runs.trackers.trackio import Trackio
from fedrfq.runs.trackers.wandb import WeightsAndBiases

TRACKERS: dict[str, type[Tracker[Any]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def trackers(track: str) -> list[Tracker[Any]]:
    """Return the trackers that `track` names; their packages must be installed."""
    wanted = tracker_names(track)
    for name in wanted:
        if name not in TRACKERS:
            raise UserError(
                f"track: expected {', '.join(TRACKERS)} or several of them, found '{name}'"
                f"{did_you_mean(name, TRACKERS)}"
            )
        if not TRACKERS[name].installed():
            package = TRACKERS[name].package
            raise UserError(f'track = "{name}" needs the package {package}: pip install {package}')
    return [TRACKERS[name]() for name in wanted]
