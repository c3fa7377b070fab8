"""MLflow: a database beside the runs, or the server that MLFLOW_TRACKING_URI names.

`mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows it. MLflow's newest releases refuse a
folder of plain files, so it is an SQLite database.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.trackers.tracker import Tracker, settings

DATABASE = "mlflow.db"
# How MLflow words the end of a run.
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
# MLflow refuses longer values of parameters, and more metrics in one call.
_MAX_VALUE = 500
_MAX_METRICS = 1000


class _Opened(NamedTuple):
    client: Any
    run: str


class MLflow(Tracker[_Opened]):
    """Writes to an MLflow tracking store; the experiment there is named as the run's."""

    package = "mlflow"

    def open(self, run: RecordedRun) -> _Opened:
        """Find the run by its name, or create it with its settings as parameters."""
        from mlflow.tracking import MlflowClient

        beside = (run.path.parent.parent / DATABASE).resolve()
        client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{beside}"))
        experiment = client.get_experiment_by_name(run.experiment.name)
        number = (
            experiment.experiment_id
            if experiment
            else client.create_experiment(run.experiment.name)
        )
        name = run.path.name
        found = client.search_runs([number], f"attributes.run_name = '{name}'", max_results=1)
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return _Opened(client, found[0].info.run_id)
        created = client.create_run(number, run_name=name).info.run_id
        for key, value in settings(run).items():
            client.log_param(created, key, str(value)[:_MAX_VALUE])
        return _Opened(client, created)

    def log(self, opened: _Opened, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the round as their step."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, number) for name, value in figures.items()]
        for first in range(0, len(metrics), _MAX_METRICS):
            opened.client.log_batch(opened.run, metrics[first : first + _MAX_METRICS])

    def close(self, opened: _Opened, status: str) -> None:
        """End the run with its status."""
        opened.client.set_terminated(opened.run, _STATUS.get(status))
