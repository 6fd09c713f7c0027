"""`dtrain run --as-is`: an unchanged script of torch.distributed gives what it gives under torchrun, and its steps are recorded.

    as_is.py BIN_FOLDER [Records|Torchrun|Ends]
"""
import json
import socket
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "integration")]

import package

import harness

SCRIPT = HERE / "ddp_script.py"
WITHOUT_DYNAMO = HERE / "without_dynamo"
EPOCHS, BATCHES = 2, 6  # of each of two ranks
PARAMETERS = 20 * 64 + 64 + 64 + 1


def environment(quick=True):
    """Of launches. `quick`: their processes start without torch._dynamo."""
    ours = package.of(harness.BUILD)
    return ours | {"PYTHONPATH": f"{WITHOUT_DYNAMO}:{ours['PYTHONPATH']}"} if quick else ours


class AsIsTest(harness.WorkplaceTest):
    def setUp(self):
        super().setUp()
        self.out = self.work.path / "out.json"

    def run_as_is(self, *options, slots=2, arguments=(), quick=True):
        folder = self.work.new_run()
        self.out.unlink(missing_ok=True)
        command = [harness.BUILD.program("dtrain"), "run", "--as-is", "--slots", str(slots), "--run-dir", folder, *options, SCRIPT,
                   self.out, *arguments]
        return harness.run(command, folder, **environment(quick))

    def result(self):
        return json.loads(self.out.read_text())

    def plain_result(self, *arguments, **variables):
        """What the script gives where nobody records it."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1]), "WORLD_SIZE": "2",
                          "LOCAL_WORLD_SIZE": "2"}
        ranks = [subprocess.Popen([sys.executable, SCRIPT, self.out, *arguments], cwd=self.work.path,
                                  env=harness.environment(RANK=rank, LOCAL_RANK=rank, **variables, **environment())) for rank in "01"]
        self.assertEqual([rank.wait(harness.DEADLINE) for rank in ranks], [0, 0])
        return self.result()

    def check_records(self, run_dir, steps, samples, ranks=2):
        summary = json.loads(subprocess.run([harness.BUILD.program("dtrain"), "summary", "--json", run_dir], check=True,
                                            capture_output=True, text=True).stdout)
        self.assertEqual(summary["steps"], steps, summary)
        lines = [json.loads(line) for file in sorted((Path(run_dir) / "profile").glob("rank-*.jsonl"))
                 for line in file.read_text().splitlines()]
        recorded = [line for line in lines if line["record"] == "step"]
        self.assertEqual(len(recorded), steps * ranks)
        self.assertEqual({line["samples"] for line in recorded}, {samples})
        for line in recorded:
            phases = line["phases"]
            for phase in ("dataloader_next", "train_batch.forward", "train_batch.backward", "optimizer_step"):
                self.assertGreater(phases[phase], 0, line)
        return lines

    def check_exchange(self, lines):
        """DistributedDataParallel's all-reduces of dtrain's groups: in each step of each rank one that has all gradients."""
        steps = [line for line in lines if line["record"] == "step"]
        exchanges = [line for line in lines if line["record"] == "collective" and line["bucket"] >= 0]
        self.assertEqual(len(exchanges), len(steps))
        for line in exchanges:
            self.assertEqual((line["operation"], line["bucket"], line["world_size"], line["bytes"]), ("all_reduce", 0, 2, 4 * PARAMETERS))
            self.assertLessEqual(line["enqueued_ns"], line["started_ns"])
            self.assertLessEqual(line["started_ns"], line["ended_ns"])
            self.assertGreater(line["exposed_ns"], 0)
        for step in steps:
            self.assertGreater(step["phases"]["allreduce_wait"], 0, step)


class Records(AsIsTest):
    def check_steps(self, result, steps, samples, ranks=2):
        result.expect(0)
        return self.check_records(result.run_dir, steps, samples, ranks)

    def test_with_its_own_backend(self):
        expected = self.plain_result()
        result = self.run_as_is("--backend", "keep", "--plain")
        lines = self.check_steps(result, EPOCHS * BATCHES, 8)
        self.assertFalse([line for line in lines if line["record"] == "collective"])
        self.assertIn("--backend keep: the exchange", result.output)
        self.assertEqual(self.result(), expected)
        plan = result.json("plan.json")
        self.assertEqual(plan["global_batch_size"], 16)
        self.assertEqual(plan["optimizer"]["kind"], "AdamW")
        self.assertEqual(plan["model"], {"parameters": PARAMETERS, "bytes": 4 * PARAMETERS, "tensors": 4, "dtype": "float32"})

        ours = self.run_as_is("--plain", quick=False)
        self.check_exchange(self.check_steps(ours, EPOCHS * BATCHES, 8))
        found = self.result()
        self.assertEqual(found.pop("backend"), "dtrain")
        expected.pop("backend")
        self.assertEqual(found, expected)  # two ranks: sums of two numbers
        self.assertIn("init_process_group(backend='gloo') makes a group of dtrain", ours.output)
        for run in (result, ours):  # the script destroys its groups
            self.assertNotIn("has made no process group", run.output)

        losses = [line["metrics"]["loss_of_rank_0"] for line in ours.metrics("training")]
        self.assertTrue(losses and all(0 < loss < 10 for loss in losses), losses)

    def test_a_step_of_several_parts(self):
        self.check_steps(self.run_as_is(arguments=["--parts", "2"]), EPOCHS * BATCHES // 2, 16)

    def test_one_rank(self):
        self.check_steps(self.run_as_is(slots=1), EPOCHS * BATCHES * 2, 8, ranks=1)


class Torchrun(AsIsTest):
    """The same records without dtrain's launcher: the script has the one line, and torchrun starts it."""

    def run_script(self, *arguments):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT, self.out, "--backend", "dtrain",
                   *arguments]
        return subprocess.run(command, cwd=self.work.path, text=True, capture_output=True,
                              env=harness.environment(**environment()))

    def test_the_run_is_recorded(self):
        expected = self.plain_result("--backend", "dtrain", DTRAIN_RECORD="false")
        self.assertFalse((self.work.path / "runs").exists())
        recorded = self.run_script()
        self.assertEqual(recorded.returncode, 0, recorded.stderr)
        self.assertNotIn("has made no process group", recorded.stderr)
        self.assertEqual(self.result(), expected)
        run_dir, = (self.work.path / "runs").glob("0*")
        self.check_exchange(self.check_records(run_dir, EPOCHS * BATCHES, 8))

    def test_an_exception_is_the_cause(self):
        failed = self.run_script("--fault", "raise")
        self.assertNotEqual(failed.returncode, 0)
        run_dir, = (self.work.path / "runs").glob("0*")
        self.assertIn("ValueError: planted", (run_dir / "events.jsonl").read_text() + failed.stderr)


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
