"""New ranks of a script, forked from the waiting interpreter (recovery.standby), are as those that were started.

    standby.py BIN_FOLDER
"""
import hashlib
import json
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import package

import harness

SCRIPT = Path(__file__).resolve().parent / "standby_script.py"
environment = {}


class Standby(harness.WorkplaceTest):
    def write(self, slow=""):
        folder = self.work.new_run()
        folder.mkdir()
        return folder, harness.write_experiment(
            folder / "e.yaml", name="standby", entrypoint=str(SCRIPT), scheduling_unit=1, max_restarts=3,
            hyperparameters={"global_batch_size": 8, "slow": str(slow)}, min_checkpoint_period={"batches": 4},
            resources={"slots_per_trial": 2, "slot_type": "cpu"}, searcher={"max_length": {"epochs": 5}},
            environment={"environment_variables": ["COLOUR=red"]})

    @staticmethod
    def outcome(run):
        lines = [{name: value for name, value in line.items() if name != "time"} for line in run.lines("metrics.jsonl")]
        return hashlib.sha256(run.weights_file.read_bytes()).hexdigest(), lines

    @staticmethod
    def facts(folder, rank):
        text = (folder / "logs" / f"rank-{rank:04}.log").read_text()
        return json.loads(next(line for line in text.splitlines() if line.startswith("facts "))[6:])

    def test_forks_are_as_started_ranks(self):
        """The script of the third attempt sets a variable that the waiting interpreter has read: its ranks become started ones."""
        folder, experiment = self.write()
        whole = harness.launch(harness.BUILD, experiment, folder / "run", **environment).expect(0)
        slow = self.work.new_run()
        slow.touch()
        folder, experiment = self.write(slow)
        run = harness.Result(0, "", folder / "run")
        command = [harness.BUILD.program("dtrain"), "launch", str(experiment), "--run-dir", str(run.run_dir)]
        with open(folder / "out", "w") as log:
            process = subprocess.Popen(command, env=harness.environment(**environment), stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT)
        try:
            events = lambda name: run.events(name) if (run.run_dir / "events.jsonl").is_file() else []  # noqa: E731
            harness.wait_until(lambda: events("checkpoint_saved") or process.poll() is not None, "a checkpoint")
            self.assertIsNone(process.poll(), (folder / "out").read_text())
            for attempt in (2, 3):
                os.kill(events("rank_started")[-1]["pid"], signal.SIGKILL)
                harness.wait_until(lambda: len(events("resumed")) == attempt - 1, f"attempt {attempt}")  # noqa: B023
                (folder / "sets-variables").touch()
            slow.unlink()
            self.assertEqual(process.wait(timeout=harness.DEADLINE), 0, (folder / "out").read_text())
        finally:
            process.kill()
            process.wait()
        self.assertEqual([event.get("from_standby", False) for event in run.events("rank_started")], 6 * [True])
        self.assertGreater(run.events("standby_ready")[0]["own_bytes"], 1 << 20)
        self.assertEqual(self.outcome(run), self.outcome(whole))
        attempts = [[self.facts(folder, rank) for rank in (0, 1)]
                    for folder in (run.run_dir / "attempt-1", run.run_dir / "attempt-2", run.run_dir)]
        for started, forked, anew in zip(*attempts):
            self.assertEqual([facts.pop("imported") for facts in (started, forked, anew)], [True, True, False])
            self.assertEqual([facts["variables"].pop("DTRAIN_RESUME_FROM") == "" for facts in (started, forked, anew)],
                             [True, False, False])
            self.assertEqual(anew["os"].pop("TORCHDYNAMO_CACHE_SIZE_LIMIT"), "3")
            self.assertEqual(forked, started)
            self.assertEqual(anew, started)
        self.assertEqual([facts["variables"]["DTRAIN_RANK"] for facts in attempts[1]], ["0", "1"])
        for event in run.events("standby_started"):
            harness.wait_until(lambda: not Path(f"/proc/{event['pid']}").exists(), "the end of the waiting process")


if __name__ == "__main__":
    harness.BUILD.open(sys.argv.pop(1), "dtrain")
    environment = package.of(harness.BUILD)
    unittest.main(verbosity=2)
