"""`dtrain launch` with launcher: slurm on a throw-away Slurm. Runs inside `slurm_bed.sh FOLDER`, on one node; what
needs two, inside `two_hosts.sh with RATE` as well.

    slurm.py BIN_FOLDER [TestClass[.test] ...]
"""
import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from harness import (BUILD, DEADLINE, SOURCE, Result, Workplace, environment, launch, main, overrides, wait_until,
                     write_job)

FASHION = SOURCE / "configs" / "fashion_mnist.yaml"
SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SHORT = ["searcher.max_length.batches=20", "min_validation_period.batches=20", "communication.timeout=60"]
ENDLESS = ["searcher.max_length.batches=1000000000"]


def slurm_environment():
    return environment(SLURM_CONF=os.environ["SLURM_CONF"])


def slurm(*command):
    return subprocess.run(command, env=slurm_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=DEADLINE)


def queue():
    return slurm("squeue", "-h", "-o", "%i").stdout.split()


def cpus_in(text):
    """Of "0-2,5" the numbers."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def process_started_at(ticks):
    for pid in subprocess.run(["pgrep", "-x", "synthetic"], stdout=subprocess.PIPE, text=True).stdout.split():
        stat = Path(f"/proc/{pid}/stat").read_text()
        if int(stat.rpartition(")")[2].split()[19]) == ticks:
            return int(pid)
    raise AssertionError("the rank is not there")


class SlurmTest(unittest.TestCase):
    def setUp(self):
        self.work = Workplace(type(self).__name__, on_disk=True)
        self.cluster = self.work.path / "cluster.yaml"
        self.cluster.write_text(json.dumps({"launcher": {"type": "slurm", "options": ["--time=10"]}}))
        self.rank_program = str(BUILD.bin.parent / "tests" / "rank_program")

    def tearDown(self):
        wait_until(lambda: not queue(), "the end of every job")
        left = subprocess.run(["pgrep", "-a", "-f", str(self.work.path)], stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(left, "")
        self.work.remove()

    def experiment(self, slots=2, **sections):
        return write_job(self.work.path, self.rank_program, slots, **sections)

    def command(self, experiment, run_dir, sets=()):
        return [BUILD.program("dtrain"), "launch", str(experiment), "--cluster", str(self.cluster), "--run-dir",
                str(run_dir), *overrides(sets)]

    def start(self, experiment, run_dir, sets=(), before=()):
        return subprocess.Popen([*before, *self.command(experiment, run_dir, sets)], env=slurm_environment(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, process, run_dir):
        output, _ = process.communicate(timeout=DEADLINE)
        return Result(process.returncode, output, run_dir)

    def launch(self, experiment, sets=(), before=()):
        run_dir = self.work.new_run()
        return self.finish(self.start(experiment, run_dir, sets, before), run_dir)

    def reached(self, run_dir, batches, process):
        path = run_dir / "metrics.jsonl"

        def there():
            return path.is_file() and len(path.read_text().splitlines()) >= batches

        wait_until(lambda: there() or process.poll() is not None, f"batch {batches}")
        if process.poll() is not None:
            raise AssertionError("it has ended:\n" + process.stdout.read())


class Submitted(SlurmTest):
    def test_a_dry_run_shows_the_script_and_submits_nothing(self):
        sets = ["searcher.max_length.batches=7"]
        command = [*self.command(self.experiment(), self.work.new_run(), sets), "--dry-run"]
        shown = slurm(*command).stdout
        self.assertIn("#SBATCH --ntasks=2\n", shown)
        self.assertIn("#SBATCH --time=10\n", shown)
        self.assertIn("--set 'searcher.max_length.batches=7'", shown)
        script = json.loads(slurm(*command, "--json").stdout)["batch_script"]
        self.assertIn(script, shown)
        self.assertEqual(queue(), [])

    def test_a_dry_run_shows_no_value_of_a_variable(self):
        sets = ["environment.environment_variables.TOKEN=secret-value"]
        command = [*self.command(self.experiment(), self.work.new_run(), sets), "--dry-run"]
        for options in ([], ["--json"]):
            shown = slurm(*command, *options).stdout
            self.assertIn("environment.environment_variables.TOKEN=***", shown)
            self.assertNotIn("secret-value", shown)

    def test_it_trains_and_says_so_once(self):
        result = self.launch(self.experiment()).expect(0)
        self.assertRegex(result.output, r"submitted as Slurm job \d+")
        self.assertEqual(result.output.count("2 ranks on 1 host"), 1)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["done"])
        files = {path.name for path in (result.run_dir / "profile").iterdir()}
        self.assertTrue({"rank-0000.jsonl", "rank-0001.jsonl"} < files, files)

    def test_the_exit_code_and_the_cause_come_through(self):
        experiment = self.experiment(hyperparameters={"trouble": {"rank": 1, "batch": 7, "kind": "exception"}})
        result = self.launch(experiment).expect(1)
        self.assertIn("failed at batch 7: the model makes no sense", result.output)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["failed"])

    def test_what_sbatch_refuses_is_an_error_with_its_reason(self):
        self.cluster.write_text(json.dumps({"launcher": {"type": "slurm", "options": ["--partition=nowhere"]}}))
        result = self.launch(self.experiment()).expect(1)
        self.assertIn("invalid partition specified: nowhere", result.output)

    def test_no_option_runs_as_shell(self):
        sentinel = self.work.path / "ran"
        for comment, code in ((f"x\ntouch {sentinel}", 2), (f"$(touch {sentinel}); touch {sentinel} 'a b'", 0)):
            options = ["--time=10", f"--comment={comment}"]
            self.cluster.write_text(json.dumps({"launcher": {"type": "slurm", "options": options}}))
            result = self.launch(self.experiment()).expect(code)
            self.assertEqual("has a line break" in result.output, code == 2, result.output)
            self.assertFalse(sentinel.exists())

    def test_interrupted_the_job_stops_after_the_step(self):
        run_dir = self.work.new_run()
        process = self.start(self.experiment(), run_dir, ENDLESS)
        self.reached(run_dir, 5, process)
        process.send_signal(2)
        result = self.finish(process, run_dir).expect(130)
        self.assertEqual([line["state"] for line in result.events("run_ended")], ["interrupted"])

    def test_requeued_it_starts_again_and_keeps_the_reason(self):
        run_dir = self.work.new_run()
        process = self.start(self.experiment(batches=400, step_ms=10), run_dir)
        self.reached(run_dir, 20, process)
        job = queue()[0]
        self.assertEqual(slurm("scontrol", "requeue", job).stdout, "")
        # Slurm lets a requeued job wait for two minutes.
        wait_until(lambda: "PENDING" in slurm("squeue", "-h", "-o", "%T").stdout, "the job's being queued again")
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
        result = self.finish(process, run_dir).expect(0)
        requeued = result.events("requeued")
        self.assertEqual([(line["job"], line["restart"], line["attempt"]) for line in requeued], [(job, 1, 1)])
        # Slurm ends all processes at once. On a busy machine the launcher sees the end of a rank before its own signal.
        self.assertRegex(requeued[0]["reason"], "interrupted by SIGTERM|without a word|ended before the run was over")
        self.assertEqual(len(result.metrics("training")), 400)
        self.assertLess(len(result.lines("attempt-1/metrics.jsonl")), 400)
        self.assertTrue((run_dir / "attempt-1" / "profile" / "rank-0001.jsonl").is_file())


class GoingOn(SlurmTest):
    """Jobs that save when Slurm warns them, are queued again, and go on from their checkpoints."""
    batches = 1000

    def saving(self, batches=None, **hyperparameters):
        return self.experiment(batches=batches or self.batches, step_ms=20,
                               hyperparameters={"checkpoint_every": 100000, **hyperparameters})

    def weights(self, run_dir):
        lines = [line for line in (run_dir / "logs" / "rank-0000.log").read_text().splitlines() if "weights " in line]
        return lines[-1]

    def undisturbed(self, batches=None):
        experiment = self.experiment(batches=batches or self.batches, step_ms=0, hyperparameters={"checkpoint_every": 100000})
        return self.weights(launch(BUILD, experiment, self.work.new_run()).expect(0).run_dir)

    def job_of(self, run_dir):
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
        return next(event["job"] for event in events if event["event"] == "job_submitted")

    def attempts(self, run_dir):
        text = (run_dir / "events.jsonl").read_text() if (run_dir / "events.jsonl").is_file() else ""
        return text.count('"attempt_started"')

    def trains(self, run_dir, attempts, process):
        """Attempt number `attempts` is in the middle of it."""
        log = run_dir / "logs" / "rank-0001.log"

        def there():
            return self.attempts(run_dir) == attempts and log.is_file() and log.read_text().count("batch ") > 3

        wait_until(lambda: there() or process.poll() is not None, f"attempt {attempts} in {run_dir}")
        if process.poll() is not None:
            raise AssertionError("it has ended:\n" + process.stdout.read())

    def warn(self, run_dir):
        """As two minutes before the time limit (--signal=B:TERM@120)."""
        self.assertEqual(slurm("scancel", "--batch", "--signal=TERM", self.job_of(run_dir)).stdout, "")

    def when_queued(self, run_dir, command=None):
        """Holds the job, or makes it start without the delay that Slurm gives to requeued ones."""
        job = self.job_of(run_dir)
        wait_until(lambda: "PENDING" in slurm("squeue", "-h", "-j", job, "-o", "%T").stdout, f"the requeueing of {job}")
        command = (command, job) if command else ("update", f"JobId={job}", "StartTime=now")
        self.assertEqual(slurm("scontrol", *command).stdout, "")

    def check(self, result, attempts, weights, batches=None):
        self.assertEqual([line["batch"] for line in result.metrics("training")],
                         list(range(1, (batches or self.batches) + 1)))
        self.assertEqual(self.weights(result.run_dir), weights)
        self.assertEqual(len(result.events("requeued")), attempts - 1)

    def test_warned_it_saves_is_queued_again_and_goes_on(self):
        run_dir = self.work.new_run()
        process = self.start(self.saving(), run_dir)
        self.trains(run_dir, 1, process)
        self.warn(run_dir)
        result = self.finish(process, run_dir).expect(0)
        self.assertRegex(result.output, r"the Slurm job \d+ is queued again and goes on from there")
        self.assertRegex(result.output, r"goes on     from step-\d+ ")
        self.check(result, 2, self.undisturbed())

    def test_what_the_user_stops_is_not_queued_again(self):
        for stop, code in ((lambda process, job: process.send_signal(15), 75),
                           (lambda process, job: process.send_signal(2), 130),
                           (lambda process, job: slurm("scancel", job), None)):
            run_dir = self.work.new_run()
            process = self.start(self.saving(), run_dir)
            self.trains(run_dir, 1, process)
            stop(process, self.job_of(run_dir))
            result = self.finish(process, run_dir)
            self.assertNotIn("queued again", result.output)
            if code is not None:
                self.assertEqual(result.code, code, result.output)
            wait_until(lambda: not queue(), "the end of the job")

    def test_a_stopped_run_goes_on_in_a_job_of_its_own(self):
        run_dir = self.work.new_run()
        process = self.start(self.saving(), run_dir)
        self.trains(run_dir, 1, process)
        process.send_signal(15)
        self.finish(process, run_dir).expect(75)
        again = subprocess.Popen([BUILD.program("dtrain"), "launch", "--continue", str(run_dir)],
                                 env=slurm_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        result = self.finish(again, run_dir).expect(0)
        self.assertRegex(result.output, r"goes on     from step-\d+ ")
        self.check(result, 1, self.undisturbed())

    def test_two_jobs_take_turns_by_preemption(self):
        batches = 20000  # more than are trained while jobs take turns, however slow Slurm is; then the rest is quick
        turns_are_over = self.work.path / "turns-are-over"
        weights = self.undisturbed(batches)
        low_dir, high_dir = self.work.new_run(), self.work.new_run()
        experiment = self.saving(batches, until_file=str(turns_are_over))
        low = self.start(experiment, low_dir)
        self.trains(low_dir, 1, low)
        self.cluster.write_text(json.dumps({"launcher": {"type": "slurm", "options": ["--time=10", "--partition=urgent"]}}))
        high = self.start(experiment, high_dir)
        for turn in (1, 2, 3):
            self.trains(high_dir, turn, high)  # Slurm has preempted the other
            self.warn(high_dir)  # and this one goes on when it is released
            self.when_queued(high_dir, "hold")
            self.when_queued(low_dir)
            self.trains(low_dir, turn + 1, low)
            slurm("scontrol", "release", self.job_of(high_dir))
            self.when_queued(high_dir)
        turns_are_over.touch()
        results = self.finish(high, high_dir).expect(0), self.finish(low, low_dir).expect(0)
        for result in results:
            self.check(result, len(result.events("requeued")) + 1, weights, batches)
            self.assertGreaterEqual(len(result.events("requeued")), 3, result.output)


class InAllocation(SlurmTest):
    before = ("salloc", "--quiet", "--ntasks=2")

    def test_srun_starts_the_ranks(self):
        result = self.launch(self.experiment(), before=self.before).expect(0)
        self.assertEqual(len(result.events("srun_started")), 1)
        self.assertEqual(len(result.events("rank_finished")), 2)
        self.assertIn("[rank=1] batch 30", result.output)

    def test_the_exit_code_of_srun_is_that_of_the_run(self):
        for kind, code, cause in (("exception", 1, "rank 1 on .* failed at batch 7: the model makes no sense"),
                                  ("exit", 1, "rank 1 on .* ended before the run was over: exit status 7"),
                                  ("SIGKILL", 1, r"rank 1 on .* was killed by signal 9")):
            experiment = self.experiment(hyperparameters={"trouble": {"rank": 1, "batch": 7, "kind": kind}})
            result = self.launch(experiment, before=self.before).expect(code)
            self.assertRegex(result.output, cause)

    def test_after_a_killed_rank_it_goes_on_from_memory(self):
        sets = ["searcher.max_length.batches=300", "scheduling_unit=5", "resources.slots_per_trial=2", "data.samples=2048",
                "hyperparameters.global_batch_size=512", "recovery.interval=1", "min_checkpoint_period.batches=1000000"]
        whole = self.launch(SYNTHETIC, sets, self.before).expect(0).weights_file.read_bytes()
        run_dir = self.work.new_run()
        process = self.start(SYNTHETIC, run_dir, sets, self.before)
        wait_until(lambda: "states_in_memory" in (run_dir / "plan.json").read_text() if (run_dir / "plan.json").is_file() else
                   process.poll() is not None, "states in memory")
        self.reached(run_dir, len((run_dir / "metrics.jsonl").read_text().splitlines()) + 2, process)
        started = [event for event in Result(0, "", run_dir).events("rank_started") if event["rank"] == 1]
        os.kill(process_started_at(started[-1]["start_ticks"]), signal.SIGKILL)
        result = self.finish(process, run_dir).expect(0)
        self.assertRegex(result.output, r"attempt 1 failed: rank [01] on \S+ was killed by signal 9")
        self.assertTrue(all("/dev/shm/" in event["path"] for event in result.events("resumed")), result.events("resumed"))
        self.assertEqual(len(result.events("resumed")), 1)
        print(f"  batches again {[event['batches_again'] for event in result.events('recovered')]}", flush=True)
        self.assertEqual(result.weights_file.read_bytes(), whole)
        folder = result.events("resumed")[0]["path"].rpartition("/")[0]
        self.assertFalse(os.path.exists(folder), folder)

    def test_it_trains_over_mpi(self):
        result = self.launch(self.experiment(), ["communication.backend=mpi"], self.before).expect(0)
        self.assertEqual(result.json("plan.json")["communication"]["backend"], "mpi")

    def test_where_no_tasks_were_asked_for_ranks_divide_the_cores(self):
        program = self.work.path / "program.sh"
        program.write_text("#!/bin/sh\necho \"mine: $OMP_NUM_THREADS $(grep Cpus_allowed_list /proc/self/status | cut -f2)\"\n"
                           f"exec {self.rank_program} \"$@\"\n")
        program.chmod(0o755)
        before = ("env", "-u", "OMP_NUM_THREADS", "salloc", "--quiet", "--nodes=1", "--exclusive")
        for slots in (1, 2):
            result = self.launch(self.experiment(slots=slots), [f"entrypoint={program}"], before).expect(0)
            said = sorted((cpus_in(cpus), int(threads)) for threads, cpus in re.findall(r"mine: (\d+) (\S+)", result.output))
            planned = result.json("plan.json")["ranks"]
            self.assertEqual(said, sorted((rank["cpus"], rank["threads"]) for rank in planned))
            if len(os.sched_getaffinity(0)) > 1:
                every = [cpu for cpus, _ in said for cpu in cpus]
                self.assertEqual(sorted(set(every)), sorted(every), "ranks share a core")


class Training(SlurmTest):
    def test_srun_and_sbatch_give_the_weights_of_a_local_run(self):
        local = launch(BUILD, FASHION, self.work.new_run(), SHORT).expect(0).weights_file.read_bytes()
        for before in ((), InAllocation.before):
            result = self.launch(FASHION, SHORT, before).expect(0)
            self.assertEqual(result.weights_file.read_bytes(), local, before)


@unittest.skipUnless(os.environ.get("TWO_HOSTS"), "two_hosts.sh has not made two nodes")
class TwoNodes(SlurmTest):
    allocation = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2")

    def check(self, result):
        hosts = {event["rank"]: event["host"] for event in result.events("rank_started")}
        self.assertEqual(hosts, {0: "nodea", 1: "nodea", 2: "nodeb", 3: "nodeb"})
        self.assertEqual(result.json("plan.json")["communication"], {"backend": "hierarchical", "hosts": 2})
        self.assertEqual({event["rank"] for event in result.events("rank_finished")}, set(range(4)))
        files = {path.name for path in (result.run_dir / "profile").iterdir()}
        self.assertTrue({f"rank-000{rank}.jsonl" for rank in range(4)} < files, files)

    def test_srun_starts_the_ranks_on_both(self):
        self.check(self.launch(self.experiment(slots=4), before=("salloc", "--quiet", *self.allocation)).expect(0))

    def test_sbatch_starts_the_ranks_on_both(self):
        launcher = {"type": "slurm", "options": ["--time=10", *self.allocation]}
        self.cluster.write_text(json.dumps({"launcher": launcher}))
        self.check(self.launch(self.experiment(slots=4)).expect(0))

    def test_a_rank_that_fails_is_named_with_its_host(self):
        for kind, cause in (("exception", "rank 3 on nodeb failed at batch 7: the model makes no sense"),
                            ("SIGKILL", "rank 3 on nodeb was killed by signal 9")):
            experiment = self.experiment(slots=4, hyperparameters={"trouble": {"rank": 3, "batch": 7, "kind": kind}})
            result = self.launch(experiment, before=("salloc", "--quiet", *self.allocation)).expect(1)
            self.assertIn(cause, result.output)


if __name__ == "__main__":
    if "SLURM_CONF" not in os.environ:
        sys.exit("slurm.py runs inside tests/harness/slurm_bed.sh FOLDER")
    main("dtrain-agent")
