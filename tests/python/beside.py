"""Validations beside the training (`validation.beside`): the metrics, the weights and the kept checkpoints are those of blocking
validations, also where ranks and evaluating processes are killed; what depends on validations comes one of them later.

    beside.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import os
import signal
import subprocess

import package

import harness
from evaluate import EvaluateTest
from torchscript_models import Net, experiment, main, random_weights, save_script

PERIOD = 4


class Beside(EvaluateTest):
    def sections(self, steps, **more):
        data = self.idx_data(samples=191)
        data["validation"] = {"features": "images", "target": "labels"}
        save_script(random_weights(Net(), seed=1), self.folder / "net.pt")
        return experiment("net.pt", data, steps, slots=2, optimizer={"kind": "adamw", "lr": 0.01},
                          **{"optimizations": {"ema": 0.9}, "min_validation_period": {"batches": PERIOD}, **more})

    def test_same_as_blocking(self):
        sections = self.sections(3 * PERIOD + 1, scheduling_unit=2)
        result = self.check_beside(self.train(sections), sections)
        # One validation comes after each period, and the last one after the last batch.
        self.assertEqual([line["batch"] for line in result.metrics("validation")], [4, 8, 12, 13])
        self.assertEqual([event["step"] for event in result.events("checkpoint_validated")], [4, 8, 12])
        # A window of several batches, in which no update completes the copies of a checkpoint.
        sections["optimizations"] = {"aggregation_frequency": 3 * PERIOD}
        self.check_beside(self.train(sections), sections)

    def test_lag(self):
        """A metric that never improves by so much: training ends one validation later, and so does the rate fall."""
        sections = self.sections(8 * PERIOD, early_stopping={"patience": 2, "min_delta": 1000})
        sections["optimizer"]["reduce_on_plateau"] = {"patience": 1, "factor": 0.5, "min_delta": 1000}
        ends, falls = [], []
        for more in ({}, {"validation": {"beside": True}}):
            run = self.train({**sections, **more})
            ends.append((run.json("plan.json")["early_stop"]["batch"], run.metrics("training")[-1]["batch"]))
            falls.append([event["batch"] for event in run.events("learning_rate_reduced")])
        self.assertEqual(ends, [(12, 12), (16, 16)])
        self.assertEqual(falls, [[8, 12], [8, 12, 16]])

    def test_kills(self):
        """Nothing is lost by the end of the saver, of an evaluating process, of a rank, or of the launcher."""
        sections = {"name": "kills", "entrypoint": self.build.program("synthetic"), "data": {"samples": 4000},
                    "hyperparameters": {"global_batch_size": 32, "width": 128}, "resources": {"slots_per_trial": 2},
                    "searcher": {"metric": "loss", "max_length": {"batches": 900}}, "min_validation_period": {"batches": 60},
                    "scheduling_unit": 30, "max_restarts": 5}
        blocking = self.train(sections)
        file = harness.write_experiment(self.folder / "experiment.yaml", **{**sections, "validation": {"beside": True}})
        run = harness.Result(0, "", self.work.new_run())

        def orders():
            return sum(len(of.read_text().splitlines()) for of in run.run_dir.glob("validation/*/orders.jsonl"))

        def ranks(folder):
            started = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
            return [event["pid"] for event in started if event["event"] == "rank_started"]

        command = [self.build.program("dtrain"), "launch", str(file), "--run-dir", str(run.run_dir)]
        environment = harness.environment(**package.of(self.build))
        with open(self.folder / "launch.log", "w") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                harness.wait_until(lambda: orders() >= 2, "two validations")
                os.kill(ranks(run.run_dir / "validation" / "1" / "run")[1], signal.SIGKILL)
                harness.wait_until(lambda: orders() >= 4, "four validations")
                savers = subprocess.run(["pgrep", "-P", str(ranks(run.run_dir)[0]), "-x", "dtrain-saver"], stdout=subprocess.PIPE,
                                        check=True).stdout.split()
                os.kill(int(savers[0]), signal.SIGKILL)
                harness.wait_until(lambda: orders() >= 6, "six validations")
                os.kill(ranks(run.run_dir)[-1], signal.SIGKILL)
                harness.wait_until(lambda: orders() >= 9, "nine validations")
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=harness.DEADLINE)
            finally:
                process.kill()
                process.wait()
        self.call("launch", "--continue", run.run_dir)
        self.check_same(blocking, run)


if __name__ == "__main__":
    main("synthetic")
