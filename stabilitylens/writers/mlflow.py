"""MLflow, by its own client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.run import Run
from stabilitylens.writers._tracker import facts, name_of_run, rows, tracker

#: metrics that MLflow takes in one request, https://mlflow.org/docs/latest/rest-api.html#log-batch
BATCH = 1000


@tracker("mlflow")
def send(run: Run) -> str:
    """A new run with every curve under its TensorBoard tag and recipe and anatomy as its parameters.

    Server and experiment are what the client takes from the environment (``MLFLOW_TRACKING_URI``,
    ``MLFLOW_EXPERIMENT_NAME``).

    Raises:
        stabilitylens.errors.BadInput: mlflow is not installed.
    """
    try:
        import mlflow
        from mlflow.entities import Metric
    except ModuleNotFoundError as error:
        raise BadInput("sending a run to MLflow needs its client: pip install mlflow-skinny") from error
    client, now = mlflow.MlflowClient(), int(1000 * time.time())
    with mlflow.start_run(run_name=name_of_run(run)) as target:
        mlflow.log_params(facts(run))
        points = (Metric(tag, value, now, step) for step, row in rows(run) for tag, value in row.items())
        for some in _batches(points):
            client.log_batch(target.info.run_id, metrics=some)
        return str(target.info.artifact_uri).removesuffix("/artifacts")


def _batches(points: Iterator[Any]) -> Iterator[list[Any]]:
    while some := list(islice(points, BATCH)):
        yield some
