"""A run in MLflow: metrics with batches as steps, hyperparameters as params, the system's metrics under MLflow's own names."""
from __future__ import annotations

import os
from typing import Any

from addresses import without_keys
from run_folder import Facts, Row, RunState
from sender import Away, Refused

# MLflow would try again for minutes, without knowing what has arrived: the sender does.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

MOST_METRICS, MOST_PARAMS, MOST_TAGS, LONGEST_PARAM, LONGEST_TAG = 1000, 100, 100, 6000, 5000
KEY_TAG = "dtrain.key"
STATUS = {"done": "FINISHED", "failed": "FAILED", "gone": "FAILED", "interrupted": "KILLED"}


class MlflowRun:
    confirms = True

    def __init__(self, url: str | None, project: str | None) -> None:
        import mlflow
        from mlflow.tracking import MlflowClient

        self._url = url or mlflow.get_tracking_uri()
        self._client = MlflowClient(self._url)
        self._project = project or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        self.place = f"mlflow {without_keys(self._url)} {self._project or ''}"
        self._there: dict[str, Any] = {}

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return getattr(self._client, name)(*arguments, **named)
        except MlflowException as error:
            status = error.get_http_status_code()
            if 400 <= status < 500 and status not in (408, 429):
                raise Refused(f"MLflow at {without_keys(self._url)}: {error.message}") from error
            raise Away(f"MLflow at {without_keys(self._url)}: {error.message}") from error
        except (OSError, ConnectionError) as error:  # also those of requests
            raise Away(f"MLflow at {without_keys(self._url)}: {error}") from error

    def open(self, facts: Facts, key: str, there: dict[str, Any]) -> None:
        self._there = there
        if "run" not in there:
            name = self._project or facts.project
            experiment = self._call("get_experiment_by_name", name)
            if experiment is not None and experiment.lifecycle_stage != "active":
                raise Refused(f"MLflow's experiment {name} was deleted there: restore it, or name another one (--project)")
            there["experiment"] = experiment.experiment_id if experiment is not None else self._call("create_experiment", name)
            # It may have been made by a process that was killed before it could note that.
            found = self._call("search_runs", [there["experiment"]], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
            if found:
                there["run"] = found[0].info.run_id
            else:
                tags = {KEY_TAG: key, "mlflow.source.name": facts.tags.get("dtrain.command", facts.name), "mlflow.source.type": "JOB"}
                if facts.description:
                    tags["mlflow.note.content"] = facts.description
                made = self._call("create_run", there["experiment"], start_time=int(facts.started_s * 1000), tags=tags,
                                  run_name=facts.name)
                there["run"] = made.info.run_id
        info = self._call("get_run", there["run"]).info
        if info.lifecycle_stage != "active":
            raise Refused(f"run {there['run']} was deleted in MLflow: restore it there, or remove the file in the run's folder follow/ "
                          "to send it anew")
        if info.status != "RUNNING":
            self._call("update_run", there["run"], status="RUNNING")  # it goes on

    def arrived(self, after: dict[str, int]) -> dict[str, set[int]]:
        return {series: {metric.step for metric in self._call("get_metric_history", self._there["run"], series) if metric.step > step}
                for series, step in after.items()}

    def send(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(series, value, int(row.time_s * 1000), row.step) for row in rows for series, value in row.values.items()]
        for begin in range(0, len(metrics), MOST_METRICS):
            self._call("log_batch", self._there["run"], metrics=metrics[begin:begin + MOST_METRICS])

    def tell(self, facts: Facts, tags: dict[str, str]) -> None:
        """A param never changes in MLflow. Where a continued run has another value, a tag has the new one."""
        from mlflow.entities import Param, RunTag

        data = self._call("get_run", self._there["run"]).data
        wanted = {key: value[:LONGEST_PARAM] for key, value in facts.params.items()}
        tags = dict(tags)
        for key, value in wanted.items():
            if data.params.get(key, value) != value:
                tags[f"dtrain.changed.{key}"] = value
        params = [Param(key, value) for key, value in wanted.items() if key not in data.params]
        for begin in range(0, len(params), MOST_PARAMS):
            self._call("log_batch", self._there["run"], params=params[begin:begin + MOST_PARAMS])
        changed = [RunTag(key, value[:LONGEST_TAG]) for key, value in tags.items() if data.tags.get(key) != value[:LONGEST_TAG]]
        for begin in range(0, len(changed), MOST_TAGS):
            self._call("log_batch", self._there["run"], tags=changed[begin:begin + MOST_TAGS])

    def close(self, state: RunState | None) -> None:
        if state is not None and state.is_over:
            end = int(state.ended_s * 1000) if state.ended_s else None
            self._call("set_terminated", self._there["run"], STATUS.get(state.word, "FAILED"), end)

    def link(self) -> str:
        base = without_keys(self._url)
        run = f"experiments/{self._there['experiment']}/runs/{self._there['run']}"
        return f"{base.rstrip('/')}/#/{run}" if base.startswith("http") else f"{base} {run}"
