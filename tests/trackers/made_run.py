"""A run's folder as a launch writes it, made line by line: for tests that choose what happens when."""
import json
import os
import shutil
import socket
import time
from datetime import datetime, timezone
from pathlib import Path

BATCHES_OF_A_LINE = 10
PLAN = {"name": "made", "world_size": 2, "slot_type": "cpu", "effective_batch_size": 64, "versions": {"dtrain": "0.1.0"},
        "ranks": [{"rank": 0, "host": "one"}, {"rank": 1, "host": "one"}],
        "experiment": {"name": "made", "description": "a made run", "labels": ["baseline", "cpu"], "entrypoint": ["train.py"],
                       "hyperparameters": {"global_batch_size": 64, "learning_rate": 0.1, "net": {"width": 8}},
                       "searcher": {"max_length": {"batches": 1000}}, "environment": {"environment_variables": {"TOKEN": "hidden-value"}}}}


def utc(seconds):
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class MadeRun:
    """`loss(batch)` is the same each time, as in a run that gives the same bits when batches are done again."""

    def __init__(self, folder):
        self.folder = Path(folder)
        (self.folder / "profile").mkdir(parents=True)
        self.batch, self.attempt, self.lengths = 0, 0, {0: 0}
        self.began = time.time() - 3600
        self.now = self.began
        self.plan(PLAN)
        # This process stands for the launcher.
        self.event("run_started", pid=os.getpid(), host=socket.gethostname().split(".")[0])
        self.begin()

    def plan(self, plan):
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def event(self, what, **fields):
        with open(self.folder / "events.jsonl", "a") as file:
            file.write(json.dumps({"time": utc(self.now), "event": what, **fields}) + "\n")

    def begin(self):
        self.attempt += 1
        self.event("attempt_started", attempt=self.attempt, step=self.batch)

    def metrics(self, line):
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    @staticmethod
    def loss(batch):
        return "nan" if batch == 70 else 1 / (1 + batch)

    def train(self, lines, change=0):
        """`change` is added to the losses, as in a run that does not give the same bits."""
        for _ in range(lines):
            self.batch += BATCHES_OF_A_LINE
            self.now += 3
            loss = self.loss(self.batch)
            self.metrics({"time": utc(self.now), "kind": "training", "batch": self.batch, "epoch": self.batch // 100, "samples": 640,
                          "learning_rate": 0.1, "metrics": {"loss": loss if change == 0 or loss == "nan" else loss + change}})
            if self.batch % 50 == 0:
                self.metrics({"time": utc(self.now), "kind": "validation", "batch": self.batch, "metrics": {"accuracy": self.batch / 1000}})
            self.lengths[self.batch] = (self.folder / "metrics.jsonl").stat().st_size

    def sample(self, seconds, host="one"):
        """The system for so many seconds, twice a second."""
        file = self.folder / "profile" / f"agent-{host}.jsonl"
        with open(file, "a") as lines:
            if lines.tell() == 0:
                lines.write(json.dumps({"record": "header", "host": host, "clock": {"offset_ns": 0},
                                        "machine": {"total_memory": 16 * 10**9}}) + "\n")
                self.sampled = self.began
            for _ in range(2 * seconds):
                self.sampled += 0.5
                lines.write(json.dumps({"record": "system", "time_ns": int(self.sampled * 1e9), "cpu_util_simple": 50.0,
                                        "free_memory": 12 * 10**9}) + "\n")

    def restart(self, batch):
        """From a checkpoint of this batch, as rank 0 does it: what was written later is cut off."""
        self.event("attempt_failed", attempt=self.attempt, cause="rank 1 was killed", step=self.batch)
        os.truncate(self.folder / "metrics.jsonl", self.lengths[batch])
        aside = self.folder / f"attempt-{self.attempt}"
        aside.mkdir()
        shutil.move(self.folder / "profile", aside / "profile")
        (self.folder / "profile").mkdir()
        self.batch = batch
        self.now += 10
        self.begin()

    def begin_anew(self):
        """Without a checkpoint: the metrics are moved away, too."""
        self.lengths = {0: 0}
        metrics = (self.folder / "metrics.jsonl").read_bytes()
        attempt = self.attempt
        self.restart(0)
        (self.folder / f"attempt-{attempt}" / "metrics.jsonl").write_bytes(metrics)
        (self.folder / "metrics.jsonl").unlink()

    def go_on(self):
        self.event("continued")
        self.event("run_started", pid=os.getpid(), host=socket.gethostname().split(".")[0])
        self.restart(self.batch)

    def end(self, state="done"):
        self.event("run_ended", state=state, exit_code=0 if state == "done" else 1, **({"cause": "it broke"} if state == "failed" else {}))

    def points(self, last):
        """{series: {step: value}} of the run up to a batch, without what depends on time."""
        steps = range(BATCHES_OF_A_LINE, last + 1, BATCHES_OF_A_LINE)
        return {"train/loss": {step: float(self.loss(step)) for step in steps},
                "train/learning_rate": {step: 0.1 for step in steps},
                "train/epoch": {step: float(step // 100) for step in steps},
                "validation/accuracy": {step: step / 1000 for step in steps if step % 50 == 0}}
