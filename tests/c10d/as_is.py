"""`dtrain run --as-is`: an unchanged script of torch.distributed gives what it gives under torchrun, and its steps are recorded.

    as_is.py BIN_FOLDER [Records|Ends]
"""
import json
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "integration")]

import package

import harness

SCRIPT = HERE / "ddp_script.py"
EPOCHS, BATCHES = 2, 6  # of each of two ranks


class AsIsTest(harness.WorkplaceTest):
    def setUp(self):
        super().setUp()
        self.out = self.work.path / "out.json"

    def run_as_is(self, *options, slots=2, arguments=()):
        folder = self.work.new_run()
        self.out.unlink(missing_ok=True)
        command = [harness.BUILD.program("dtrain"), "run", "--as-is", "--slots", str(slots), "--run-dir", folder, *options, SCRIPT,
                   self.out, *arguments]
        return harness.run(command, folder, **package.of(harness.BUILD))

    def result(self):
        return json.loads(self.out.read_text())


class Records(AsIsTest):
    def check_steps(self, result, steps, samples, ranks=2):
        result.expect(0)
        summary = json.loads(subprocess.run([harness.BUILD.program("dtrain"), "summary", "--json", result.run_dir], check=True,
                                            capture_output=True, text=True).stdout)
        self.assertEqual(summary["steps"], steps, summary)
        lines = [json.loads(line) for file in sorted((Path(result.run_dir) / "profile").glob("rank-*.jsonl"))
                 for line in file.read_text().splitlines()]
        recorded = [line for line in lines if line["record"] == "step"]
        self.assertEqual(len(recorded), steps * ranks)
        self.assertEqual({line["samples"] for line in recorded}, {samples})
        for line in recorded:
            phases = line["phases"]
            for phase in ("dataloader_next", "train_batch.forward", "train_batch.backward", "optimizer_step"):
                self.assertGreater(phases[phase], 0, line)

    def test_with_its_own_backend(self):
        plain = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT, self.out], text=True,
                               capture_output=True, env=harness.environment())
        self.assertEqual(plain.returncode, 0, plain.stderr)
        expected = self.result()
        result = self.run_as_is("--backend", "keep", "--plain")
        self.check_steps(result, EPOCHS * BATCHES, 8)
        self.assertEqual(self.result(), expected)
        plan = result.json("plan.json")
        self.assertEqual(plan["global_batch_size"], 16)
        self.assertEqual(plan["optimizer"]["kind"], "AdamW")
        self.assertEqual(plan["model"]["parameters"], 20 * 64 + 64 + 64 + 1)

        ours = self.run_as_is("--plain")
        self.check_steps(ours, EPOCHS * BATCHES, 8)
        found = self.result()
        self.assertEqual(found.pop("backend"), "dtrain")
        expected.pop("backend")
        self.assertEqual(found, expected)  # two ranks: sums of two numbers
        self.assertIn("init_process_group(backend='gloo') makes a group of dtrain", ours.output)

        losses = [line["metrics"]["loss_of_rank_0"] for line in ours.metrics("training")]
        self.assertTrue(losses and all(0 < loss < 10 for loss in losses), losses)

    def test_a_step_of_several_parts(self):
        self.check_steps(self.run_as_is(arguments=["--parts", "2"]), EPOCHS * BATCHES // 2, 16)

    def test_one_rank(self):
        self.check_steps(self.run_as_is(slots=1), EPOCHS * BATCHES * 2, 8, ranks=1)


class Ends(AsIsTest):
    def test_an_exception_is_the_cause(self):
        result = self.run_as_is(arguments=["--fault", "raise"]).expect(1)
        self.assertIn("ValueError: planted", result.output)
        self.assertIn("ddp_script.py", result.output)
        self.assertNotIn("as_is.py", result.output)

    def test_an_exit_code_is_named(self):
        self.assertIn("sys.exit(3)", self.run_as_is(arguments=["--fault", "exit"]).expect(1).output)

    def test_ranks_that_train_alone_are_told(self):
        self.assertIn("the script has made no process group: each of the 2 ranks has trained by itself",
                      self.run_as_is(arguments=["--fault", "alone"]).expect(0).output)

    def test_keys_of_the_engines_loop_are_refused(self):
        result = self.run_as_is("--set", "optimizations.aggregation_frequency=2").expect(2)
        self.assertIn("optimizations.aggregation_frequency: has no effect on an unchanged script", result.output)


if __name__ == "__main__":
    harness.BUILD.open(sys.argv.pop(1), "dtrain")
    unittest.main(verbosity=2)
