"""MLflow tracker: writes to the server or database in `MLFLOW_TRACKING_URI`, or to files in the workdir."""

import os
import time

from bertjax.training.run.trackers import base


class Tracker(base.Tracker):
    """An MLflow run in the experiment `MLFLOW_EXPERIMENT_NAME`, by default `bertjax`."""

    package = "mlflow"

    def start(self, run):
        import mlflow

        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:  # files need no database package, but MLflow 3 only writes them with this variable
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = f"file:{run.folder}/mlruns"
        self._client = mlflow.MlflowClient(uri)
        if run.id:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bertjax")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        self._client.log_dict(self._id, run.settings, "config.json")
        return self._id

    def write(self, step, scalars):
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in scalars.items()])

    def close(self):
        self._client.set_terminated(self._id)
