"""What a run over two hosts does when a rank dies, a keeper dies, a host loses power, or the link is cut: in pods (PET_*
alone), by ssh (the same command on each host), by MPI (`dtrain launch` with launcher: mpi), and by torchrun with a script.
Runs inside `two_hosts.sh with unshaped`; prints a table, and exits with 1 if a run has neither gone on with the bits of the
undisturbed one nor ended with a cause that it names.

    host_faults.py BIN_FOLDER [--beds pods,ssh,mpi,torchrun] [--faults rank,ranks,twice,keeper,mpirun,monitor,host,link]
                   [--cut 30] [--off 8] [--set KEY=VALUE]...

The faults: a rank of the second host, all ranks there, a rank there and one of the first host while the run recovers from that,
the keeper of the second host (by MPI its orted), mpirun on the first one, the monitor of the second host, the host with
its memory, the link. --set: settings of the runs besides their own. --cut: seconds without the link. --off: seconds until a host that lost its power is there again. What Kubernetes or a user
would start again on the second host, this does, too: after the end of its keeper, and when its power is back.
"""
import argparse
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster_bed import BED, HOSTS, on_host
from harness import BUILD, SOURCE, Workplace, environment, overrides
from pods import MASTER, RUNS, USER, Pod, hosts_file

SYNTHETIC = SOURCE / "configs" / "synthetic.yaml"
SCRIPT = SOURCE / "tests" / "python" / "host_faults_script.py"
BATCHES = 4000
SETS = [f"searcher.max_length.batches={BATCHES}", "scheduling_unit=10", "resources.slots_per_trial=4",
        "min_checkpoint_period.batches=100", "max_restarts=8", "data.samples=2048", "hyperparameters.width=64"]
PET = {"PET_NNODES": "2", "PET_MASTER_PORT": "29400", "PET_NPROC_PER_NODE": "2"}
LONGEST = 240  # seconds of a run; only against hangs
NOTICED = re.compile(r"is lost|attempt \d+ failed|was killed by|stopped because|is gone|Sending process .* closing signal|"
                     r"failed \(exitcode|RendezvousConnectionError|SignalException")


class Bed:
    """A way of starting a run. `start` begins the host's part; `keeper` is what starts ranks there."""
    keeper, rank = "dtrain", "synthetic"
    faults = "rank,keeper,host,link"

    def __init__(self, work):
        self.work, self.outputs, self.processes = work, {}, []
        self.run_dir = work.new_run()

    def prepare(self):
        pass

    def background(self, host, command):
        """A command on a host, in the background; its output goes to a file."""
        path = self.work.path / f"{self.run_dir.name}-{host}-{time.monotonic_ns()}.out"
        self.outputs.setdefault(host, []).append(path)
        with open(path, "w") as output:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                                   env=environment()))

    def output(self, host):
        return "".join(path.read_text(errors="replace") for path in self.outputs.get(host, []))

    def start_all(self):
        for host in "ab":
            self.start(host)
        wait_for(lambda: (self.run_dir / "events.jsonl").is_file() or any(process.poll() for process in self.processes), 60)

    def started_again(self):
        """Whether another keeper must be started on the second host, after the end of the first."""
        return True

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for host in "ab":
            kill_all(host)


class Pods(Bed):
    def prepare(self):
        os.chown(self.work.path, USER, USER)
        for host in "ab":
            with open(hosts_file(host), "a") as file:
                file.write(f"10.71.1.1 {MASTER}\n")

    def start(self, host):
        inside = str(self.run_dir).replace(str(self.work.path), RUNS)
        pod = Pod(host, "ab".index(host), BUILD.bin, self.work.path,
                  ["dtrain", "launch", str(SYNTHETIC), "--run-dir", inside, *overrides(SETS)])
        self.outputs.setdefault(host, []).append(Path(pod.output_file.name))
        self.processes.append(pod.process)


class Ssh(Bed):
    """A user, who starts the same command on each host and does not stay connected to it."""

    def start(self, host):
        path = self.work.path / f"{self.run_dir.name}-{host}-{time.monotonic_ns()}.out"
        path.touch()
        self.outputs.setdefault(host, []).append(path)
        own = environment()
        settings = {**PET, "PET_NODE_RANK": str("ab".index(host)), "PET_MASTER_ADDR": "nodea",
                    **{name: own[name] for name in ("OMP_NUM_THREADS", "XDG_CONFIG_HOME", "DTRAIN_CALIBRATION")}}
        words = [*(f"{name}={value}" for name, value in settings.items()), BUILD.program("dtrain"), "launch", str(SYNTHETIC),
                 "--run-dir", str(self.run_dir), *overrides(SETS)]
        command = f"cd /; nohup env {shlex.join(words)} >{path} 2>&1 </dev/null &"
        subprocess.run([BED, "run", HOSTS, "a", "ssh", "-n", "-F", f"{HOSTS}/ssh_config", f"node{host}", command], check=True)


class Mpi(Bed):
    """One rank a host: ranks that poll for MPI take the cores from each other where there are fewer cores than ranks."""
    keeper = "orted"
    faults = "rank,mpirun,keeper,monitor,host,link"

    def start(self, host):
        if host == "b":
            return
        file = self.work.path / "cluster.yaml"
        shell = ["--mca", "plm_rsh_agent", f"ssh -F {HOSTS}/ssh_config", "--mca", "pml", "ob1"]
        file.write_text(json.dumps({"agents": [{"id": f"node-{name}", "host": f"node{name}", "slots": 1} for name in "ab"],
                                    "task_container_defaults": {"dtrain_network_interface": "10.71.1.0/24"},
                                    "launcher": {"type": "mpi", "options": shell}}))
        self.background("a", [BED, "run", HOSTS, "a", BUILD.program("dtrain"), "launch", str(SYNTHETIC), "--cluster", str(file),
                              "--run-dir", str(self.run_dir), *overrides([*SETS, "resources.slots_per_trial=2"])])

    def started_again(self):
        return False  # the launcher does it


class Torchrun(Bed):
    keeper, rank = "torch.distributed.run", SCRIPT.name

    def start(self, host):
        package = BUILD.bin.parent / "python"
        # With --master-addr torchrun's agents do not meet again, so another one on the second host does not find the first.
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "8",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", "nodea:29400", "--rdzv-id", "faults",
                 "--rdzv-conf", f"is_host={'true' if host == 'a' else 'false'}", str(SCRIPT), str(self.run_dir), str(BATCHES)]
        self.background(host, [BED, "run", HOSTS, host, "env", f"PYTHONPATH={package}", "PYTHONDONTWRITEBYTECODE=1", *words])


def kill_all(host):
    """Every process of a run on that host."""
    for pattern in ("dtrain", "synthetic", "orted", "mpirun", "torch.distributed.run", SCRIPT.name, "multiprocessing"):
        flag = "-f" if "." in pattern or pattern == "multiprocessing" else "-x"
        on_host(host, "pkill", "-KILL", flag, pattern)
    on_host(host, "pkill", "-KILL", "-x", "dtrain-(agent|saver)")


def pids(host, what):
    flag = "-x" if what in ("dtrain", "synthetic", "orted") else "-f"
    return [int(word) for word in on_host(host, "pgrep", flag, what).split() if word.isdigit()]


def lines(path):
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            pass  # it is being written
    return found


def events(run_dir, name):
    return [line for line in lines(run_dir / "events.jsonl") if line["event"] == name]


def wait_for(condition, longest=LONGEST):
    end = time.monotonic() + longest
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def has_ended(bed):
    ends, starts = events(bed.run_dir, "run_ended"), events(bed.run_dir, "attempt_started")
    done = ends and (not starts or ends[-1]["time"] > starts[-1]["time"])
    nobody = not pids("a", bed.keeper if bed.keeper != "orted" else "dtrain") and not pids("b", bed.keeper)
    return (done and ends[-1]["state"] == "done") or nobody


def seconds_of(text):
    import datetime
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Fault:
    """Breaks something on the second host, and mends it. `back`: when all is there again."""

    def __init__(self, bed, options):
        self.bed, self.options, self.back = bed, options, None

    def rank(self):
        on_host("b", "kill", "-KILL", str(pids("b", self.bed.rank)[-1]))
        self.at = self.back = time.time()

    def ranks(self):
        on_host("b", "kill", "-KILL", *map(str, pids("b", self.bed.rank)))
        self.at = self.back = time.time()

    def twice(self):
        before = pids("a", self.bed.rank)
        self.rank()

        def new():  # ranks, not the process that waits to become one
            return sorted(set(pids("a", self.bed.rank)) - set(before))
        wait_for(new, 30)
        time.sleep(random.uniform(0, 1))
        on_host("a", "kill", "-KILL", *map(str, new()[:1]))

    def mpirun(self):
        on_host("a", "pkill", "-KILL", "-x", "mpirun")
        self.at = self.back = time.time()

    def monitor(self):
        on_host("b", "pkill", "-KILL", "-x", "dtrain-agent")
        self.at = self.back = time.time()

    def keeper(self):
        on_host("b", "kill", "-KILL", *map(str, pids("b", self.bed.keeper)))
        self.at = self.back = time.time()
        self.noticed_within(1)
        if self.bed.started_again():
            self.bed.start("b")
            self.back = time.time()

    def host(self):
        subprocess.run([BED, "cut", HOSTS], check=True)
        self.at = time.time()
        kill_all("b")
        on_host("b", "find", "/dev/shm", "-mindepth", "1", "-delete")
        self.noticed_within(self.options.off)
        subprocess.run([BED, "mend", HOSTS], check=True)
        if self.bed.started_again():
            self.bed.start("b")
        self.back = time.time()

    def link(self):
        subprocess.run([BED, "cut", HOSTS], check=True)
        self.at = time.time()
        self.noticed_within(self.options.cut)
        subprocess.run([BED, "mend", HOSTS], check=True)
        self.back = time.time()

    def noticed_within(self, seconds):
        """Waits that long, and looks meanwhile."""
        end = time.time() + seconds
        while time.time() < end:
            self.look()
            time.sleep(0.05)

    noticed = None

    def look(self):
        if self.noticed is None and NOTICED.search(self.bed.output("a")[self.before:]):
            self.noticed = time.time()

    def happen(self, kind):
        self.before = len(self.bed.output("a"))
        getattr(self, kind)()


def undisturbed(bed_type, work):
    bed = bed_type(work)
    bed.prepare()
    try:
        bed.start_all()
        if not wait_for(lambda: has_ended(bed)):
            raise AssertionError(f"the undisturbed run does not end:\n{bed.output('a')}")
        weights = bed.run_dir / "checkpoints" / "final" / "model.safetensors"
        if not weights.is_file():
            raise AssertionError(f"the undisturbed run has failed:\n{bed.output('a')}\n{bed.output('b')}")
        return weights.read_bytes()
    finally:
        bed.end()


def disturbed(bed_type, kind, work, options, whole):
    bed = bed_type(work)
    bed.prepare()
    try:
        bed.start_all()
        if not wait_for(lambda: len(lines(bed.run_dir / "metrics.jsonl")) >= 60):
            raise AssertionError(f"it does not train:\n{bed.output('a')}")
        fault = Fault(bed, options)
        fault.happen(kind)
        wait_for(lambda: fault.look() or has_ended(bed))
        # A keeper of the first host may be a moment behind the last event.
        wait_for(lambda: not pids("a", bed.rank) and not pids("b", bed.rank), 20)
        row = {"noticed": fault.noticed and fault.noticed - fault.at, "back": fault.back - fault.at, "on": None, "on_after": None}
        began = [seconds_of(event["time"]) for event in events(bed.run_dir, "attempt_started")]
        began = [at for at in began if at > fault.at]
        first = [seconds_of(line["time"]) for line in lines(bed.run_dir / "metrics.jsonl") if line.get("kind") == "training"]
        first = [at for at in first if began and at > began[-1]]
        if first:
            row |= {"on": first[0] - fault.at, "on_after": first[0] - max(fault.back, fault.noticed or 0)}
        row["attempts"] = 1 + len(began)
        row["again"] = ", ".join(str(event["batches_again"]) for event in events(bed.run_dir, "recovered"))
        weights = bed.run_dir / "checkpoints" / "final" / "model.safetensors"
        done = [event["state"] for event in events(bed.run_dir, "run_ended")][-1:] == ["done"]
        named = re.findall(r"(?:the run failed|attempt \d+ failed|has waited|dtrain: rank).*", bed.output("a"))
        if done and weights.is_file():
            row["result"] = "the same bits" if weights.read_bytes() == whole else "OTHER BITS"
        else:
            row["result"] = "ended: " + named[-1][:150] if named else "NO END"
        row["good"] = row["result"] == "the same bits" or row["result"].startswith("ended: ")
        if not row["good"] or options.verbose:
            print(f"-- a\n{bed.output('a')[-4000:]}\n-- b\n{bed.output('b')[-4000:]}", flush=True)
        return row
    finally:
        subprocess.run([BED, "mend", HOSTS], stderr=subprocess.DEVNULL)
        bed.end()


def text_of(seconds):
    return "" if seconds is None else f"{seconds:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_folder")
    parser.add_argument("--beds", default="pods,ssh,mpi,torchrun")
    parser.add_argument("--faults", help="for each bed its own, if they are not given")
    parser.add_argument("--cut", type=float, default=30)
    parser.add_argument("--off", type=float, default=8)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    SETS.extend(options.sets)
    if not HOSTS:
        sys.exit("host_faults.py runs inside tests/harness/two_hosts.sh with RATE")
    BUILD.open(options.bin_folder, "synthetic")
    beds = {"pods": Pods, "ssh": Ssh, "mpi": Mpi, "torchrun": Torchrun}
    bad = 0
    print("| bed | fault | noticed after s | all there again after s | first batch after s | after noticing or being there s "
          "| attempts | batches again | result |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.beds.split(","):
        work = Workplace("host-faults", on_disk=True)
        names = {host: hosts_file(host).read_text() for host in "ab"}
        try:
            whole = undisturbed(beds[name], work)
            for kind in (options.faults or beds[name].faults).split(","):
                row = disturbed(beds[name], kind, work, options, whole)
                bad += not row["good"]
                print(f"| {name} | {kind} | {text_of(row['noticed'])} | {text_of(row['back'])} | {text_of(row['on'])} | "
                      f"{text_of(row['on_after'])} | {row['attempts']} | {row['again']} | {row['result']} |", flush=True)
        finally:
            for host in "ab":
                hosts_file(host).write_text(names[host])
            work.remove()
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
