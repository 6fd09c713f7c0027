"""What the tests of `dtrain launch` over two hosts share. They run inside `two_hosts.sh with RATE[,RATE1]`."""
import json
import os
import subprocess
import time
import unittest

from harness import BUILD, DEADLINE, SOURCE, Result, Workplace, environment, overrides, wait_until, write_job

BED = str(SOURCE / "tests" / "harness" / "two_hosts.sh")
HOSTS = os.environ.get("TWO_HOSTS", "")
PROGRAMS = "rank_program|fashion_mnist|synthetic|dtrain-rank|parity_trial|dtrain-agent|dtrain-saver|orted|mpirun|dtrain"
ENDLESS = ["searcher.max_length.batches=1000000000"]


def on_host(host, *command):
    command = [BED, "run", HOSTS, host, *command]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def left_running(host):
    """One line a process of a run on that host."""
    lines = on_host(host, "ps", "-eo", "pid,stat,comm,args").splitlines()[1:]
    names = tuple(name[:15] for name in PROGRAMS.split("|"))
    return [line for line in lines if line.split()[2] in names and not line.split()[1].startswith("Z")]


def profiles(ranks):
    """What both hosts and so many ranks record."""
    return {"agent-node-1.jsonl", "agent-node-2.jsonl", *(f"rank-000{rank}.jsonl" for rank in range(ranks))}


def all_gone():
    return not left_running("a") and not left_running("b")


class Running:
    """A command on the first host, in the background."""

    def __init__(self, command, run_dir):
        self.run_dir = run_dir
        self.output_file = open(str(run_dir) + ".out", "w+")
        self.process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=self.output_file,
                                        stderr=subprocess.STDOUT)

    def output(self):
        with open(self.output_file.name, errors="replace") as file:
            return file.read()

    def batches(self):
        path = self.run_dir / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.is_file() else 0

    def reached(self, batches):
        wait_until(lambda: self.batches() >= batches or self.process.poll() is not None, f"batch {batches}")
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended with {self.process.returncode}:\n{self.output()}")
        return self

    def wait(self, deadline=DEADLINE):
        code = self.process.wait(deadline)
        self.output_file.close()
        return Result(code, self.output(), self.run_dir)


class ClusterTest(unittest.TestCase):
    build = BUILD

    def setUp(self):
        self.work = Workplace(type(self).__name__, on_disk=True)
        self.rank_program = str(self.build.bin.parent / "tests" / "rank_program")

    def tearDown(self):
        for host in "ab":
            self.assertEqual(left_running(host), [], f"left on host {host}")
        self.work.remove()

    def cluster(self, a=2, b=2, network="10.71.1.0/24", options=(), **more):
        """The path of a cluster file."""
        shell = ["--mca", "plm_rsh_agent", f"ssh -F {HOSTS}/ssh_config"]
        path = self.work.path / "cluster.yaml"
        path.write_text(json.dumps({
            "agents": [{"id": "node-1", "host": "nodea", "slots": a}, {"id": "node-2", "host": "nodeb", "slots": b}],
            "task_container_defaults": {"dtrain_network_interface": network},
            "launcher": {"type": "mpi", "options": [*shell, "--mca", "pml", "ob1", *options]}, **more}))
        return path

    def experiment(self, slots=4, **sections):
        return write_job(self.work.path, self.rank_program, slots, **sections)

    def start(self, cluster, experiment, sets=(), run_dir=None, variables=()):
        run_dir = run_dir or self.work.new_run()
        own = environment()
        pass_on = [f"{name}={own[name]}" for name in ("DTRAIN_STATE_DIR", "XDG_CONFIG_HOME", "DTRAIN_CALIBRATION")]
        command = [BED, "run", HOSTS, "a", "env", *pass_on, *variables, self.build.program("dtrain"), "launch",
                   str(experiment), "--cluster", str(cluster), "--run-dir", str(run_dir), *overrides(sets)]
        return Running(command, run_dir)

    def launch(self, *args, deadline=DEADLINE, **named):
        return self.start(*args, **named).wait(deadline)


def seconds_until_all_gone(since):
    wait_until(all_gone, "the end of every process of the run")
    return time.monotonic() - since
