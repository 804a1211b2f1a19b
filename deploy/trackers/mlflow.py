"""MLflow: one of its runs for each run of the server, continued when the server continues."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping

from coinflower.server.checkpoint import write_atomically
from coinflower.server.settings import Settings

RUN = "mlflow-run"
"""File in the server's state folder with the name that MLflow gave the run."""

# Unless the operator says otherwise: nothing goes to MLflow's makers, and we try again ourselves.
_USUAL = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
# What MLflow takes in no name; a task of one's own may give its metrics any.
_STRANGE = re.compile(r"[^\w. :/-]", re.ASCII)
_ENDS = {"finished": "FINISHED", "failed": "FAILED", "defective": "FAILED"}


class MlflowTracker:
    """Logs to MLflow, where its own settings or ours say.

    Args:
        settings: Settings of the run.
    """

    def __init__(self, settings: Settings) -> None:
        for name, value in _USUAL.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=settings.mlflow.uri)
        path = settings.state / RUN
        if path.exists():
            self._run = path.read_text()
            self._client.update_run(self._run, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(settings.mlflow.experiment)
        name = (
            self._client.create_experiment(settings.mlflow.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        self._run = self._client.create_run(name, run_name=settings.terms.experiment).info.run_id
        fields = {**settings.terms.to_fields(), "insecure": settings.insecure_seed is not None}
        params = [Param(key, str(value)) for key, value in fields.items()]
        self._client.log_batch(self._run, params=params)
        write_atomically(path, self._run.encode())

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        now = int(1000 * time.time())
        metrics = [
            self._metric(_STRANGE.sub("_", name), value, now, round_)
            for name, value in figures.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, state: str) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, status=_ENDS.get(state, "KILLED"))
