import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException


class MlflowClient:
    def __init__(self, uri):
        self.uri, self.folder = uri, Path(os.environ["STAND_IN"])

    def _fault(self, name):
        file = self.folder / name
        if not file.exists():
            return ""
        first, _, rest = file.read_text().partition("\n")
        file.write_text(rest)
        return first

    def _read(self):
        file = self.folder / "run.json"
        return json.loads(file.read_text()) if file.exists() else None

    def _write(self, run):
        draft = self.folder / "run.draft"
        draft.write_text(json.dumps(run))
        draft.replace(self.folder / "run.json")

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        if (self.folder / "away").exists():
            raise MlflowException(f"API request to {self.uri} failed: Connection refused")
        return name

    def search_runs(self, experiments, words, max_results):
        run = self._read()
        found = run is not None and run["tags"]["dtrain.key"] in words
        return [SimpleNamespace(info=SimpleNamespace(run_id=run["id"]))] if found else []

    def create_run(self, experiment, start_time, tags, run_name):
        made = len((self.folder / "made").read_text()) if (self.folder / "made").exists() else 0
        (self.folder / "made").write_text("x" * (made + 1))
        self._write({"id": f"run{made}", "experiment": experiment, "name": run_name, "start": start_time, "tags": tags, "params": {},
                     "status": ["RUNNING"]})
        if self._fault("faults of create_run") == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run{made}"))

    def get_run(self, run_id):
        run = self._read()
        if run is None or run["id"] != run_id:
            raise MlflowException(f"Run '{run_id}' not found", 404)
        return SimpleNamespace(info=SimpleNamespace(lifecycle_stage="active", status=run["status"][-1]),
                               data=SimpleNamespace(params=run["params"], tags=run["tags"]))

    def update_run(self, run_id, status):
        run = self._read()
        self._write({**run, "status": [*run["status"], status]})

    def set_terminated(self, run_id, status, end_time):
        self.update_run(run_id, status)

    def get_metric_history(self, run_id, key):
        lines = (self.folder / "points.jsonl").read_text().splitlines() if (self.folder / "points.jsonl").exists() else []
        return [point for point in (Metric(*json.loads(line)) for line in lines) if point.key == key]

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        if params or tags:
            run = self._read()
            for param in params:
                if run["params"].setdefault(param.key, param.value) != param.value:
                    raise MlflowException(f"Changing param values is not allowed: {param.key}", 400)
            run["tags"].update({tag.key: tag.value for tag in tags})
            self._write(run)
        if not metrics:
            return
        fault = self._fault("faults")
        if fault == "cut before":
            raise MlflowException(f"API request to {self.uri} failed: Connection refused")
        part = len(metrics) // 2 if fault.endswith("middle") else len(metrics)
        with open(self.folder / "points.jsonl", "a") as file:
            file.write("".join(json.dumps(list(metric)) + "\n" for metric in metrics[:part]))
        if fault.startswith(("kill", "stop")):
            os.kill(os.getpid(), signal.SIGKILL if fault.startswith("kill") else signal.SIGTERM)
        if fault.startswith("cut"):
            raise MlflowException(f"API request to {self.uri} failed: Connection reset by peer")
