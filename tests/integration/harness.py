"""What the integration tests share: folders, experiment files, starting runs, reading what they left behind."""
import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
DEADLINE = 120  # seconds; only against hangs
# The background job of a shell script ignores it, and what is started from here would, too: dtrain keeps it so.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Build:
    """The build under test; its bin folder is the first argument of every test program."""

    def __init__(self, *bin_folder, **trial):
        if bin_folder:
            self.open(*bin_folder, **trial)

    def open(self, bin_folder, trial="parity_trial"):
        self.bin = Path(bin_folder).resolve()
        for program in ("dtrain", trial):
            if not (self.bin / program).is_file():
                sys.exit(f"{self.bin / program} is missing: build it first")

    def program(self, name):
        return str(self.bin / name)


BUILD = Build()  # opened by main()


def main(trial="parity_trial", **options):
    """Runs the tests of a program that is called with a bin folder and, if not all are wanted, with the names of tests."""
    if len(sys.argv) < 2:
        sys.exit(sys.modules["__main__"].__doc__)
    BUILD.open(sys.argv.pop(1), trial)
    unittest.main(verbosity=2, **options)


@functools.cache
def own_state_folder():
    """The launches of a test program queue behind each other, and behind no others."""
    folder = tempfile.mkdtemp(prefix="dtrain-state-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def environment(**extra):
    """This process's environment without what says who a rank is or names a cluster; one thread a rank unless told."""
    drop = ("OMPI_", "SLURM_", "PMIX_", "DTRAIN_", "OMP_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    result = {k: v for k, v in os.environ.items() if not k.startswith(drop) and k not in names}
    result.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "XDG_CONFIG_HOME": "/nonexistent",
                   "DTRAIN_STATE_DIR": own_state_folder(), "DTRAIN_CALIBRATION": "false"})
    result.update(extra)
    return result


def memory_folder():
    """A file system in memory, if it has room for runs and TMPDIR does not name another place."""
    folder = Path("/dev/shm")
    return folder if "TMPDIR" not in os.environ and folder.is_dir() and shutil.disk_usage(folder).free >= 4 << 30 else None


def memory_of(run):
    """The place of the run's states in memory."""
    digest = 0xCBF29CE484222325
    for byte in str(run.resolve()).encode():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return Path(f"/dev/shm/dtrain-{os.geteuid()}-{digest:016x}")


def left_in_shared_memory(before, *runs):
    """What is new in /dev/shm and can be of `runs`: tests beside this one have the states of their runs there."""
    own = {memory_of(run).name for run in runs}
    states = re.compile(r"dtrain-\d+-[0-9a-f]{16}")
    return [name for name in set(os.listdir("/dev/shm")) - set(before)
            if name in own or ("dtrain" in name and not states.fullmatch(name))]


class Workplace:
    """A temporary folder for runs. It is in memory: half of a short run's time goes into waiting for a disk. `on_disk` is for
    tests of the disk itself, and for hosts of their own, which have a /dev/shm each."""

    def __init__(self, name, on_disk=False):
        folder = None if on_disk else memory_folder()
        # Not "dtrain-" in memory: tests look there for what runs have left.
        self.path = Path(tempfile.mkdtemp(prefix=f"test-{name}-" if folder else f"dtrain-{name}-", dir=folder))
        self.runs = 0

    def new_run(self):
        self.runs += 1
        return self.path / f"run-{self.runs}"

    def remove(self):
        shutil.rmtree(self.path)


class WorkplaceTest(unittest.TestCase):
    """A test with a workplace, which is kept (and named) when the test fails."""

    ON_DISK = False

    def setUp(self):
        self.work = Workplace(type(self).__name__, self.ON_DISK)
        self.problems_before = self.problems()

    def problems(self):
        return len(self._outcome.result.errors) + len(self._outcome.result.failures)

    def tearDown(self):
        if self.problems() == self.problems_before:
            self.work.remove()
        else:
            print(f"the runs are in {self.work.path}", file=sys.stderr)


def write_experiment(path, **sections):
    """JSON is YAML. A test that ends a rank looks at what becomes of this attempt, if it does not say otherwise."""
    Path(path).write_text(json.dumps({"max_restarts": 0, **sections}, indent=1))
    return Path(path)


def write_job(folder, rank_program, slots, batches=30, step_ms=5, **sections):
    """The experiment of a run of tests/run/rank_program on several hosts."""
    hyperparameters = {"global_batch_size": 16, "step_ms": step_ms, **sections.pop("hyperparameters", {})}
    return write_experiment(folder / "experiment.yaml", name="job", entrypoint=rank_program,
                            hyperparameters=hyperparameters, resources={"slots_per_trial": slots},
                            searcher={"max_length": {"batches": batches}}, communication={"timeout": 60}, **sections)


class Result:
    def __init__(self, code, output, run_dir):
        self.code, self.output, self.run_dir = code, output, Path(run_dir)

    @property
    def weights_file(self):
        return self.run_dir / "checkpoints" / "final" / "model.safetensors"

    def lines(self, name):
        path = self.run_dir / name
        if not path.is_file():
            raise AssertionError(f"{path} is missing; the run said:\n{self.output}")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def json(self, name):
        return json.loads((self.run_dir / name).read_text())

    def metrics(self, kind):
        return [line for line in self.lines("metrics.jsonl") if line["kind"] == kind]

    def events(self, name):
        return [line for line in self.lines("events.jsonl") if line["event"] == name]

    def expect(self, code):
        if self.code != code:
            raise AssertionError(f"exit code {self.code}, expected {code}; the run said:\n{self.output}")
        return self


def overrides(sets):
    return [part for item in sets for part in ("--set", item)]


def check_waterfall(report):
    """The parts of the waterfall sum to all of the time, in every run that wrote a report."""
    embedded = re.search(r'id="analysis"[^>]*>(.*?)</script>', report.read_text(), re.S)
    waterfall = json.loads(embedded.group(1))["waterfall"]
    if waterfall["parts"] and waterfall["wall_s"] > 0:
        shares = {part["name"]: part["share"] for part in waterfall["parts"]}
        if abs(sum(shares.values()) - 1) > 5e-4 or min(shares.values()) < -5e-4:
            raise AssertionError(f"{report}: the waterfall sums to {100 * sum(shares.values()):.2f}%: {shares}")


def run(command, run_dir, deadline=DEADLINE, **extra_environment):
    done = subprocess.run(command, env=environment(**extra_environment), stdin=subprocess.DEVNULL, timeout=deadline,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    report = Path(run_dir) / "report.html"
    if report.is_file():
        check_waterfall(report)
    return Result(done.returncode, done.stdout, run_dir)


def python(*command):
    """What a script that must succeed says."""
    return run([sys.executable, "-B", *map(str, command)], "").expect(0).output


def launch(build, experiment, run_dir, sets=(), deadline=DEADLINE, **extra_environment):
    command = [build.program("dtrain"), "launch", str(experiment), "--run-dir", str(run_dir), *overrides(sets)]
    return run(command, run_dir, deadline, **extra_environment)


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen in {DEADLINE} s")
        time.sleep(0.02)


def interrupt_training(command, run_dir, batches=1):
    """Starts a run and, after some batches, interrupts it, which it must say with its exit code."""
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = Path(run_dir) / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) >= batches, "the first metrics")
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=DEADLINE)
        if code != 130:
            raise AssertionError(f"exit code {code} of the interrupted run, expected 130")
    finally:
        process.kill()
        process.wait()
