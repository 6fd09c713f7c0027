"""A run whose new ranks are forks of the waiting process has the bits of one that nothing disturbed.

    standby.py BIN_FOLDER

The ranks are stopped until that process is ready; then one of them is killed.
"""
import hashlib
import os
import signal
import subprocess

import harness


class Forks(harness.WorkplaceTest):
    def write(self, folder):
        folder.mkdir()
        return harness.write_experiment(
            folder / "e.yaml", name="standby", entrypoint="synthetic", max_restarts=1, scheduling_unit=10,
            hyperparameters={"global_batch_size": 16, "features": 32, "width": 64, "depth": 3, "classes": 4, "learning_rate": 0.05},
            data={"samples": 2000}, resources={"slots_per_trial": 2, "slot_type": "cpu"},
            min_checkpoint_period={"batches": 50}, searcher={"metric": "accuracy", "smaller_is_better": False,
                                                             "max_length": {"batches": 1000}})

    @staticmethod
    def outcome(run):
        lines = [{name: value for name, value in line.items() if name != "time"} for line in run.lines("metrics.jsonl")]
        return hashlib.sha256(run.weights_file.read_bytes()).hexdigest(), lines

    def test_have_the_bits_of_started_ranks(self):
        folder = self.work.new_run()
        whole = harness.launch(harness.BUILD, self.write(folder), folder / "run").expect(0)
        folder = self.work.new_run()
        run = harness.Result(0, "", folder / "run")
        command = [harness.BUILD.program("dtrain"), "launch", str(self.write(folder)), "--run-dir", str(run.run_dir)]
        with open(folder / "out", "w") as out:
            process = subprocess.Popen(command, env=harness.environment(), stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT)
        try:
            def events(name):
                self.assertIsNone(process.poll(), (folder / "out").read_text())
                return run.events(name) if (run.run_dir / "events.jsonl").is_file() else []

            harness.wait_until(lambda: (run.run_dir / "metrics.jsonl").is_file() and run.lines("metrics.jsonl"), "a batch")
            ranks = [event["pid"] for event in events("rank_started")]
            for pid in ranks:
                os.kill(pid, signal.SIGSTOP)
            harness.wait_until(lambda: events("standby_ready"), "the waiting process")
            os.kill(ranks[1], signal.SIGKILL)
            os.kill(ranks[0], signal.SIGCONT)
            self.assertEqual(process.wait(timeout=harness.DEADLINE), 0, (folder / "out").read_text())
        finally:
            process.kill()
            process.wait()
        self.assertEqual([event.get("from_standby", False) for event in run.events("rank_started")], [False, False, True, True])
        self.assertEqual(self.outcome(run), self.outcome(whole))


if __name__ == "__main__":
    harness.main("synthetic")
