"""`dtrain follow` and the key `tracking`, over a stand-in for MLflow that records what it gets and fails on purpose.

    follow.py BIN [NAMES OF TESTS]

The real tools have tests of their own: real_trackers.py (make ecosystem WHAT=trackers).
"""
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from made_run import PLAN, MadeRun

HERE = Path(__file__).resolve().parent
DEADLINE = 60  # seconds; only against hangs
FAULTS = ("cut before", "cut middle", "cut after", "kill middle", "kill after", "stop middle", "")
PASSWORD = "correct-horse"


class Followed(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="dtrain-follow-"))
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.server = self.place / "server"
        self.server.mkdir()
        self.variables = {**os.environ, "DTRAIN_PYTHON": sys.executable, "PYTHONPATH": str(HERE / "stand_in"), "STAND_IN": str(self.server),
                          "DTRAIN_STATE_DIR": str(self.place / "state"), "DTRAIN_CALIBRATION": "false",
                          "MLFLOW_TRACKING_PASSWORD": PASSWORD, "XDG_CONFIG_HOME": str(self.place)}

    def command(self, *words):
        return [str(BIN / "dtrain"), *words]

    def start(self, run, *options):
        process = subprocess.Popen(self.command("follow", str(run.folder), "--to", "mlflow", "--url", "http://there", *options),
                                   env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait()
        process.stdout.close()

    def follow(self, run, *options, code=0):
        process = self.start(run, *options)
        said, _ = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, code, said)
        return said

    def there(self):
        """{series: {step: value}}; a point that is there twice is an error."""
        found = {}
        for line in (self.server / "points.jsonl").read_text().splitlines():
            series, value, _, step = json.loads(line)
            self.assertNotIn(step, found.setdefault(series, {}), f"{series} is there twice")
            found[series][step] = value
        return found

    def remote(self):
        return json.loads((self.server / "run.json").read_text())

    def check_points(self, run, last):
        there = self.there()
        for series, points in run.points(last).items():
            self.assertEqual(there.get(series, {}).keys(), points.keys(), series)
            for step, value in points.items():
                same = there[series][step] == value or (math.isnan(value) and math.isnan(there[series][step]))
                self.assertTrue(same, f"{series} {step}: {there[series][step]}, and not {value}")
        return there


class EachPointOnce(Followed):
    def test_while_it_trains_with_restarts_kills_and_cuts(self):
        dice = random.Random(5)
        (self.server / "faults").write_text("".join(dice.choice(FAULTS) + "\n" for _ in range(8)) + "cut middle\nkill middle\nstop middle\n")
        (self.server / "faults of create_run").write_text("kill\n")
        run = MadeRun(self.place / "run")
        run.sample(25)
        kills = 0
        process = self.start(run)

        def look_after(seconds):
            nonlocal process, kills
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                code = process.poll()
                if code == 0:
                    return
                if code is not None:
                    self.assertIn(code, (-signal.SIGKILL, 130), process.communicate()[0])
                    kills += 1
                    process = self.start(run)
                time.sleep(0.02)

        for step in range(8):
            run.train(6)
            look_after(0.3)
            if step in (2, 4):
                run.restart(run.batch - 40)
            if step == 3:
                os.kill(process.pid, signal.SIGKILL)  # wherever it is
            if step == 5:
                run.begin_anew()
                run.train(20)
                run.sample(20)
        last = run.batch
        run.end()
        while process.poll() != 0:
            look_after(0.05)
        self.assertGreaterEqual(kills, 2)
        there = self.check_points(run, last)
        self.assertEqual(sorted(there["system/cpu_utilization_percentage"]), [0, 1, 2])
        remote = self.remote()
        self.assertEqual((self.server / "made").read_text(), "x", "one run, although the process was killed while it made it")
        self.assertEqual(remote["status"][-1], "FINISHED")
        self.assertEqual(remote["params"]["learning_rate"], "0.1")
        self.assertEqual(remote["params"]["net.width"], "8")
        self.assertEqual(remote["tags"]["labels"], "baseline, cpu")
        self.assertEqual(remote["tags"]["dtrain.attempts"], "4")
        self.assertNotIn("hidden-value", json.dumps(remote))

    def test_a_run_that_is_continued_stays_one_run(self):
        run = MadeRun(self.place / "run")
        run.train(10)
        run.end("failed")
        self.assertIn("mlflow has all of it (failed)", self.follow(run))
        self.assertEqual(self.remote()["tags"]["dtrain.cause"], "it broke")
        run.go_on()
        run.plan({**PLAN, "experiment": {**PLAN["experiment"], "hyperparameters": {"global_batch_size": 64, "learning_rate": 0.2}}})
        run.train(10)
        self.follow(run, "--once")
        self.assertEqual(self.remote()["status"], ["RUNNING", "FAILED", "RUNNING"])
        run.end()
        self.follow(run)
        self.check_points(run, 200)
        self.assertEqual(self.remote()["status"], ["RUNNING", "FAILED", "RUNNING", "FINISHED"])
        self.assertEqual(self.remote()["params"]["learning_rate"], "0.1")
        self.assertEqual(self.remote()["tags"]["dtrain.changed.learning_rate"], "0.2")
        moved = self.place / "moved"
        shutil.copytree(run.folder, moved)  # with another inode for each file
        run.folder = moved
        self.follow(run)
        self.check_points(run, 200)

    def test_other_values_of_batches_that_are_done_again_are_told(self):
        run = MadeRun(self.place / "run")
        run.train(10)
        self.follow(run, "--once")
        run.restart(50)
        run.train(10, change=1.0)
        run.end()
        self.assertIn("4 points of batches that were done again had other values", self.follow(run))  # one is nan both times
        self.assertEqual(self.there()["train/loss"][60], 1 / 61)
        self.assertEqual(self.there()["train/loss"][110], 1 / 111 + 1)
        self.assertEqual(self.remote()["tags"]["dtrain.different_when_done_again"], "4")


class Messages(Followed):
    def test_a_server_that_is_away_and_one_that_refuses(self):
        run = MadeRun(self.place / "run")
        run.train(3)
        run.end()
        (self.server / "away").touch()
        self.variables["MLFLOW_TRACKING_URI"] = f"http://ann:{PASSWORD}@there"
        command = self.command("follow", str(run.folder), "--to", "mlflow", "--patience", "0")
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("http://***@there", done.stdout)
        self.assertIn("what is left waits in the run's folder", done.stdout)
        (self.server / "away").unlink()
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.check_points(run, 30)
        for file in run.folder.rglob("*"):
            if file.is_file():
                self.assertNotIn(PASSWORD, file.read_text(), file)
        self.assertNotIn(PASSWORD, done.stdout + done.stderr)
        (self.server / "run.json").unlink()
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not found", done.stdout)

    def test_one_process_sends(self):
        run = MadeRun(self.place / "run")
        run.train(1)
        first = self.start(run)
        self.assertIn("mlflow: http://there/#/experiments/made/runs/run0", first.stdout.readline())
        self.assertIn(f"process {first.pid} sends this run there already", self.follow(run, code=1))
        first.send_signal(signal.SIGTERM)
        self.assertIn("stopped by SIGTERM; dtrain follow goes on from here", first.communicate(timeout=DEADLINE)[0])

    def test_what_is_missing_or_wrong_is_named(self):
        run = MadeRun(self.place / "run")
        del self.variables["PYTHONPATH"]
        for words, text in ((("--to", "mlflow"), f"{sys.executable} -m pip install mlflow"),
                            (("--to", "mlflow", "--url", f"http://ann:{PASSWORD}@there"), "MLFLOW_TRACKING_PASSWORD"),
                            (("--to", "trackio", "--url", f"http://there?write_token={PASSWORD}"), "TRACKIO_WRITE_TOKEN"),
                            (("--to", "wandb", "--url", "there"), "must begin with http:// or https://")):
            done = subprocess.run(self.command("follow", str(run.folder), *words), env=self.variables, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)
            self.assertNotIn(PASSWORD, done.stdout + done.stderr)


class Tracking(Followed):
    """The key of the experiment. A program that is no rank ends the run at once."""

    def launch(self, tracking, *options):
        file = self.place / "experiment.yaml"
        file.write_text(f"name: small\nentrypoint: /bin/false\nhyperparameters: {{global_batch_size: 4, width: 3}}\n"
                        f"searcher: {{max_length: {{batches: 4}}}}\nmax_restarts: 0\ntracking: {tracking}\n")
        return subprocess.run(self.command("launch", str(file), "--run-dir", str(self.place / "run"), *options), env=self.variables,
                              cwd=self.place, capture_output=True, text=True, timeout=DEADLINE)

    def test_a_launch_starts_it(self):
        done = self.launch("[mlflow: http://there]")
        self.assertEqual(done.returncode, 1)
        self.assertIn("tracking    mlflow has all of it (failed): http://there/#/experiments/small/runs/run0", done.stdout + done.stderr)
        self.assertEqual(self.remote()["status"][-1], "FAILED")
        self.assertEqual(self.remote()["params"]["width"], "3")
        self.assertTrue((self.place / "run" / "follow" / "mlflow.log").exists())

    def test_what_is_wrong_is_found_before_the_run_begins(self):
        for tracking, text in ((f"[mlflow: 'http://ann:{PASSWORD}@there']", "MLFLOW_TRACKING_PASSWORD"),
                               ("[wandbb]", "did you mean wandb?"), ("[trackio]", "pip install trackio"),
                               ("mlflow", "must be a list of mlflow, wandb and trackio")):
            done = self.launch(tracking)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(text, done.stderr)
            self.assertNotIn(PASSWORD, done.stdout + done.stderr)
            self.assertFalse((self.place / "run").exists())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BIN = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
