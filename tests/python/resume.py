"""Scripts and trials in Python that are killed and go on: their last weights have the bits of the run without a break.

    resume.py BIN_FOLDER [KILLS]

KILLS: how many runs have a rank killed at a random batch (10). The launcher restarts every other one by itself; the rest ends, and goes on
by --continue. DTRAIN_RESUME_SEED seeds the batches, and is printed.
"""
import hashlib
import os
import random
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import package

import harness

HERE = Path(__file__).resolve().parent
# Of the engine, and one that steps by itself.
JOBS = [("resume_script.py", "AdamW"), ("resume_trial.py:Resumed", "AdamW"), ("resume_script.py", "NAdam"),
        ("resume_trial.py:Resumed", "NAdam"), ("resume_script.py accumulates", "AdamW")]
kills = 10


class Resume(harness.WorkplaceTest):
    def write(self, entrypoint, optimizer, seconds, **sections):
        path = self.work.new_run().with_suffix(".yaml")
        script, *ways = entrypoint.split()
        return harness.write_experiment(
            path, name="resume", entrypoint=str(HERE / script), scheduling_unit=1 if ways else 5,
            hyperparameters={"global_batch_size": 8, "optimizer": optimizer, "seconds": seconds, "accumulates": bool(ways)},
            min_checkpoint_period={"batches": 4}, min_validation_period={"epochs": 1},
            resources={"slots_per_trial": 2}, searcher={"max_length": {"epochs": 5}}, **sections)

    def digest(self, result):
        return hashlib.sha256(result.weights_file.read_bytes()).hexdigest()

    @staticmethod
    def lines(result):
        """Of metrics.jsonl, but for when they were written."""
        return [{name: value for name, value in line.items() if name != "time"} for line in result.lines("metrics.jsonl")]

    def kill(self, experiment, run_dir, batch):
        """Runs it, kills a rank after so many batches, and waits for the end. The launcher's exit code."""
        command = [build.program("dtrain"), "launch", str(experiment), "--run-dir", str(run_dir)]
        log = open(run_dir.with_suffix(".log"), "w")
        process = subprocess.Popen(command, env=harness.environment(**environment), stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT)
        run = harness.Result(0, "", run_dir)
        try:
            harness.wait_until(lambda: process.poll() is not None or self.batches(run) >= batch, f"batch {batch}")
            self.assertIsNone(process.poll(), f"{log.name}: it ended before batch {batch}")
            victim = random.choice([event["pid"] for event in run.events("rank_started")])
            os.kill(victim, signal.SIGKILL)
            return process.wait(timeout=harness.DEADLINE)
        finally:
            process.kill()
            process.wait()
            log.close()

    @staticmethod
    def batches(run):
        if not (run.run_dir / "metrics.jsonl").is_file():
            return 0
        return max((line["batch"] for line in run.metrics("training")), default=0)

    def test_killed_runs_go_on(self):
        seed = int(os.environ.get("DTRAIN_RESUME_SEED", random.randrange(1 << 30)))
        print(f"DTRAIN_RESUME_SEED={seed}", file=sys.stderr)
        random.seed(seed)
        whole = {}
        for job in JOBS:
            result = harness.launch(build, self.write(*job, seconds=0), self.work.new_run(), **environment).expect(0)
            whole[job] = self.digest(result), self.lines(result)
            if "accumulates" in job[0]:  # the twelfth batch of an epoch has two samples
                self.assertEqual([line["samples"] for line in result.metrics("training")], [24, 24, 24, 18] * 5)
            if "trial" in job[0]:
                self.assertEqual([line["batch"] for line in result.metrics("validation")], [12, 24, 36, 48, 60])
        for number in range(kills):
            job, batch, restarts = JOBS[number % len(JOBS)], random.choice(range(5, 46, 5)), number // len(JOBS) % 2
            if "accumulates" in job[0]:
                batch = random.choice(range(5, 17))  # of 20 steps
            with self.subTest(job=job, batch=batch, restarts=restarts):
                run_dir = self.work.new_run()
                experiment = self.write(*job, seconds=0.05, max_restarts=restarts)
                code = self.kill(experiment, run_dir, batch)
                self.assertEqual(code == 0, restarts == 1, run_dir.with_suffix(".log").read_text())
                result = harness.Result(0, "", run_dir)
                if not restarts:
                    result = harness.run([build.program("dtrain"), "launch", "--continue", str(run_dir)], run_dir, **environment)
                    result.expect(0)
                self.assertGreater(len(result.events("resumed")), 0)
                self.assertNotIn("begin anew", result.output)
                self.assertEqual((self.digest(result), self.lines(result)), whole[job])

    def test_the_same_command_goes_on_with_the_run(self):
        """dtrain.init(run_dir=…): a process that is started again, and torchrun, which starts all ranks again."""
        def command(ranks, run_dir, death):
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1",
                        "--nproc-per-node", str(ranks)] if ranks > 1 else []
            return [sys.executable, *torchrun, str(HERE / "resume_init_script.py"), str(run_dir), str(death)]

        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                whole = self.work.new_run()
                expected = harness.run(command(ranks, whole, 0), whole, **environment).expect(0)
                self.assertEqual([event["reason"] for event in expected.events("checkpoint_saved")], ["period", "end"])
                self.assertIn(expected.events("checkpoint_saved")[0]["step"], range(9, 14))
                run_dir = self.work.new_run()
                result = harness.run(command(ranks, run_dir, 20), run_dir, **environment)
                self.assertTrue((run_dir / "was_killed").exists(), result.output)
                if ranks == 1:
                    self.assertEqual(result.code, -signal.SIGKILL, result.output)
                    result = harness.run(command(ranks, run_dir, 20), run_dir, **environment)
                result.expect(0)
                self.assertEqual(len(result.events("resumed")), 1, result.output)
                self.assertEqual((self.digest(result), self.lines(result)), (self.digest(expected), self.lines(expected)))
                if ranks > 1:
                    continue
                # Once more: nothing is left to train, and the state of before stays in its checkpoint.
                result = harness.run(command(ranks, run_dir, 20), run_dir, **environment).expect(0)
                self.assertEqual((self.digest(result), self.lines(result)), (self.digest(expected), self.lines(expected)))
                self.assertNotIn("begin anew", result.output)
                more = harness.run([*command(ranks, run_dir, 0), "6"], run_dir, **environment).expect(0)
                whole = self.work.new_run()
                expected = harness.run([*command(ranks, whole, 0), "6"], whole, **environment).expect(0)
                self.assertEqual((self.digest(more), self.lines(more)), (self.digest(expected), self.lines(expected)))


if __name__ == "__main__":
    build = harness.Build(sys.argv.pop(1), trial="dtrain")
    environment = package.of(build)
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        kills = int(sys.argv.pop(1))
    unittest.main()
