"""examples/python: the script and the trial, started in each way that its README names, reach the accuracy that it says;
`dtrain run`, torchrun and the script by itself train only some batches.

    examples.py BIN_FOLDER [Script|FashionMnistTrial]
"""
import shutil
import subprocess
import sys
import unittest

import package

import harness

EXAMPLE = harness.SOURCE / "examples" / "python"
ACCURACY = 0.88  # the README says: about 0.89
BATCHES = 60
ACCURACY_OF_SOME_BATCHES = 0.7  # about 0.78
DEADLINE = 300  # seconds; only against hangs


class ExampleTest(harness.WorkplaceTest):
    def accuracies(self, result):
        self.assertEqual(len(result.events("attempt_started")), 1, result.output)
        return [line["metrics"]["accuracy"] for line in result.metrics("validation")]

    def reaches(self, result):
        accuracies = self.accuracies(result.expect(0))
        self.assertEqual(len(accuracies), 2, result.output)
        self.assertGreater(accuracies[-1], ACCURACY)
        self.assertTrue(result.weights_file.is_file())

    def reaches_some(self, result):
        """After BATCHES."""
        self.assertGreater(self.accuracies(result.expect(0))[0], ACCURACY_OF_SOME_BATCHES)
        self.assertEqual(max(line["batch"] for line in result.metrics("training")), BATCHES)
        self.assertEqual(result.json("plan.json")["global_batch_size"], 128)
        self.assertTrue(result.weights_file.is_file())

    def launch(self, experiment, *sets):
        return harness.launch(BUILD, EXAMPLE / experiment, self.work.new_run(), ["max_restarts=0", *sets],
                              deadline=DEADLINE, **ENVIRONMENT)

    def script_of_some_batches(self):
        folder = self.work.new_run()
        shutil.copytree(EXAMPLE, folder)
        text = (folder / "train.py").read_text()
        self.assertEqual(text.count("dtrain.init()"), 1)
        length = f"searcher={{'max_length': {{'batches': {BATCHES}}}}}"
        (folder / "train.py").write_text(text.replace("dtrain.init()", f"dtrain.init({length})"))
        return folder / "train.py"

    def start(self, *command):
        """In a folder of its own, where the run's folder is made."""
        folder = self.work.new_run()
        folder.mkdir()
        done = subprocess.run([str(word) for word in command], cwd=folder, env=harness.environment(**ENVIRONMENT),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=DEADLINE, check=False)
        runs = sorted((folder / "runs").glob("0*"))
        self.assertEqual(len(runs), 1, done.stdout)
        return harness.Result(done.returncode, done.stdout, runs[0])


class Script(ExampleTest):
    def test_dtrain_launch(self):
        result = self.launch("train.yaml")
        self.reaches(result)
        self.assertIn("epoch 2: accuracy 0.", result.output)

    def test_dtrain_run_and_torchrun(self):
        run = self.start(BUILD.program("dtrain"), "run", "--set", f"searcher.max_length.batches={BATCHES}", "--slots", 2,
                         EXAMPLE / "train.py")
        torchrun = self.start(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2,
                              self.script_of_some_batches())
        for result in (run, torchrun):
            self.reaches_some(result)
        self.assertEqual(torchrun.json("plan.json")["started_by"], "torchrun")
        self.assertEqual(torchrun.weights_file.read_bytes(), run.weights_file.read_bytes())

    def test_by_itself(self):
        self.reaches_some(self.start(sys.executable, self.script_of_some_batches()))


class FashionMnistTrial(ExampleTest):
    def test_dtrain_launch(self):
        self.reaches(self.launch("trial.yaml"))

    def test_it_stops_early(self):
        """At this rate nothing is learnt, and three validations in a row are alike."""
        result = self.launch("trial.yaml", "hyperparameters.learning_rate=0", "searcher.max_length.batches=60",
                             "min_validation_period.batches=5").expect(0)
        self.assertEqual(len(self.accuracies(result)), 3)


if __name__ == "__main__":
    BUILD = harness.Build(sys.argv.pop(1), trial="dtrain")
    ENVIRONMENT = package.of(BUILD)
    unittest.main(verbosity=2)
