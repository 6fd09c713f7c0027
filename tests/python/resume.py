"""Scripts and trials in Python that are killed and go on: their last weights have the bits of the run without a break.

    resume.py BIN_FOLDER [KILLS]

Each job has a rank killed at a random batch. KILLS: how many runs of the launcher's have, too (2). It restarts every other one by
itself; the rest ends, and goes on by --continue. DTRAIN_RESUME_SEED seeds the batches, and is printed.
"""
import hashlib
import os
import random
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import forked

import harness

HERE = Path(__file__).resolve().parent
# Of the engine, and those that step by themselves: in channels_last, whose state has its strides.
JOBS = [("resume_script.py", "AdamW"), ("resume_trial.py:Resumed", "AdamW"), ("resume_script.py convolves", "Adadelta"),
        ("resume_trial.py:Resumed", "NAdam"), ("resume_script.py accumulates", "AdamW")]
kills = 2


def target_of(job):
    return str(HERE / job[0].split()[0])


class Resume(harness.WorkplaceTest):
    wholes = {}  # by job

    @classmethod
    def setUpClass(cls):
        seed = int(os.environ.get("DTRAIN_RESUME_SEED", random.randrange(1 << 30)))
        print(f"DTRAIN_RESUME_SEED={seed}", file=sys.stderr)
        random.seed(seed)

    def write(self, job, slow="", **sections):
        """`slow`: a file; the job is slow while it exists."""
        (entrypoint, optimizer), folder = job, self.work.new_run()
        script, *ways = entrypoint.split()
        folder.mkdir()
        accumulates, convolves = "accumulates" in ways, "convolves" in ways
        if convolves:
            sections["optimizations"] = {"memory_format": "channels_last"}
        return folder, harness.write_experiment(
            folder / "resume.yaml", name="resume", entrypoint=str(HERE / script), scheduling_unit=1 if accumulates else 5,
            hyperparameters={"global_batch_size": 8, "optimizer": optimizer, "slow": str(slow), "accumulates": accumulates,
                             "convolves": convolves},
            min_checkpoint_period={"batches": 4}, min_validation_period={"epochs": 1},
            resources={"slots_per_trial": 2}, searcher={"max_length": {"epochs": 5}}, **sections)

    def digest(self, result):
        return hashlib.sha256(result.weights_file.read_bytes()).hexdigest()

    @staticmethod
    def lines(result):
        """Of metrics.jsonl, but for when they were written."""
        return [{name: value for name, value in line.items() if name != "time"} for line in result.lines("metrics.jsonl")]

    def kill(self, run, slow, batch, has_ended, victims):
        """Kills a rank of this run after so many batches; from then on the job is fast."""
        harness.wait_until(lambda: has_ended() or self.batches(run) >= batch, f"batch {batch}")
        self.assertFalse(has_ended(), f"{run.run_dir}: it ended before batch {batch}")
        os.kill(random.choice(victims()), signal.SIGKILL)
        slow.unlink()

    def launch_and_kill(self, experiment, run, slow, batch):
        """The launcher's exit code."""
        command = [harness.BUILD.program("dtrain"), "launch", str(experiment), "--run-dir", str(run.run_dir)]
        with open(run.run_dir.with_suffix(".log"), "w") as log:
            process = subprocess.Popen(command, env=harness.environment(**environment), stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT)
        try:
            self.kill(run, slow, batch, lambda: process.poll() is not None,
                      lambda: [event["pid"] for event in run.events("rank_started")])
            return process.wait(timeout=harness.DEADLINE)
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def batches(run):
        if not (run.run_dir / "metrics.jsonl").is_file():
            return 0
        return max((line["batch"] for line in run.metrics("training")), default=0)

    def whole(self, job):
        """What a run without a break leaves."""
        if job in self.wholes:
            return self.wholes[job]
        folder, experiment = self.write(job)
        result = forked.run(target_of(job), folder, experiment, 2).expect(0)
        if "accumulates" in job[0]:  # the twelfth batch of an epoch has two samples
            self.assertEqual([line["samples"] for line in result.metrics("training")], [24, 24, 24, 18] * 5)
        if "trial" in job[0]:
            self.assertEqual([line["batch"] for line in result.metrics("validation")], [12, 24, 36, 48, 60])
        self.wholes[job] = self.digest(result), self.lines(result)
        return self.wholes[job]

    def check(self, job, result):
        self.assertGreater(len(result.events("resumed")), 0)
        self.assertNotIn("begin anew", result.output)
        self.assertEqual((self.digest(result), self.lines(result)), self.whole(job))

    def some_batch(self, job):
        return random.choice(range(5, 17) if "accumulates" in job[0] else range(5, 46, 5))  # of 20 steps, and of 60

    def slow_file(self):
        file = self.work.new_run()
        file.touch()
        return file

    def test_killed_ranks_go_on(self):
        """All ranks are started again, as torchrun does."""
        for job in JOBS:
            batch, slow = self.some_batch(job), self.slow_file()
            with self.subTest(job=job, batch=batch):
                folder, experiment = self.write(job, slow)
                ranks = forked.start(target_of(job), folder, experiment, 2, "--or-continue")
                self.kill(harness.Result(0, "", folder / "run"), slow, batch,
                          lambda: any(rank.exitcode is not None for rank in ranks), lambda: [rank.pid for rank in ranks])
                self.assertNotEqual(forked.finish(ranks, folder).code, 0)
                self.check(job, forked.run(target_of(job), folder, experiment, 2, "--or-continue").expect(0))

    def test_killed_runs_of_the_launcher_go_on(self):
        jobs = random.sample(JOBS, len(JOBS))
        for number in range(kills):
            job, restarts, slow = jobs[number % len(jobs)], number % 2, self.slow_file()
            batch = self.some_batch(job)
            with self.subTest(job=job, batch=batch, restarts=restarts):
                folder, experiment = self.write(job, slow, max_restarts=restarts)
                run = harness.Result(0, "", folder / "run")
                code = self.launch_and_kill(experiment, run, slow, batch)
                run.output = (folder / "run.log").read_text()
                self.assertEqual(code == 0, restarts == 1, run.output)
                if not restarts:
                    run = harness.run([harness.BUILD.program("dtrain"), "launch", "--continue", str(run.run_dir)], run.run_dir,
                                      **environment).expect(0)
                self.check(job, run)

    def test_the_same_command_goes_on_with_the_run(self):
        """dtrain.init(run_dir=…): a process that is started again, and torchrun, which starts all ranks again."""
        warm = forked.WarmPython(**environment)
        self.addCleanup(warm.close)

        def start(ranks, run_dir, *arguments):
            command = [str(HERE / "resume_init_script.py"), str(run_dir), *map(str, arguments)]
            if ranks == 1:
                return warm.run(command, self.work.path, run_dir)
            return harness.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1",
                                "--nproc-per-node", str(ranks), *command], run_dir, **environment)

        def start_without_folder(*arguments):
            """torchrun starts the ranks again without being told which folder rank 0 has made."""
            place = self.work.new_run()
            place.mkdir()
            done = harness.run(["env", f"--chdir={place}", sys.executable, "-m", "torch.distributed.run", "--standalone",
                                "--max-restarts", "1", "--nproc-per-node", "2", str(HERE / "resume_init_script.py"), "-",
                                *map(str, arguments)], "", **environment)
            (folder,) = (place / "runs").glob("[0-9]*")
            return harness.Result(done.code, done.output, folder)

        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                expected = start(ranks, self.work.new_run(), 0).expect(0)
                self.assertEqual([event["reason"] for event in expected.events("checkpoint_saved")], ["period", "end"])
                self.assertIn(expected.events("checkpoint_saved")[0]["step"], range(9, 14))
                run_dir = self.work.new_run()
                result = start(ranks, run_dir, 20) if ranks == 1 else start_without_folder(20)
                run_dir = result.run_dir
                self.assertTrue((run_dir / "was_killed").exists(), result.output)
                if ranks == 1:
                    self.assertEqual(result.code, -signal.SIGKILL, result.output)
                    result = start(ranks, run_dir, 20)
                result.expect(0)
                self.assertEqual(len(result.events("resumed")), 1, result.output)
                self.assertEqual((self.digest(result), self.lines(result)), (self.digest(expected), self.lines(expected)))
                if ranks > 1:
                    self.assertIn("torchrun has started the ranks again: restart 1 of 1", result.output)
                    self.assertEqual(result.events("continued"), [])
                    continue
                # Once more: nothing is left to train, and the state of before stays in its checkpoint.
                result = start(ranks, run_dir, 20).expect(0)
                self.assertEqual((self.digest(result), self.lines(result)), (self.digest(expected), self.lines(expected)))
                self.assertNotIn("begin anew", result.output)
                more = start(ranks, run_dir, 0, 6).expect(0)
                expected = start(ranks, self.work.new_run(), 0, 6).expect(0)
                self.assertEqual((self.digest(more), self.lines(more)), (self.digest(expected), self.lines(expected)))


if __name__ == "__main__":
    environment = forked.use_package()
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        kills = int(sys.argv.pop(1))
    unittest.main()
