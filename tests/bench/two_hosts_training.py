"""A step of training over two hosts, joined by a link of each speed: ours over TCP, with TLS, over Open MPI, and DistributedDataParallel
over gloo. Two ranks, one on each of two hosts (tests/harness/two_hosts.sh: network namespaces, needs root), with a core each.

    two_hosts_training.py BIN_FOLDER [--links unshaped,1gbit,100mbit] [--models fashion_cnn,mlp] [--turns N]

The contestants are alive at once and take turns of a few steps; the first step of a turn does not count, because it finds the caches full
of another's data. Prints a line of JSON for each model and link: medians over steps of the slowest rank in milliseconds, DDP's over
each of ours, and floor_ms, in which the link carries the gradients once in each direction.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BED = str(ROOT / "tests" / "harness" / "two_hosts.sh")
MODELS = {"fashion_cnn": ("bench_fashion_trial", 64, 6, {}),
          "mlp": ("bench_step_trial", 32, 6, {"width": 512, "depth": 6})}
OURS = {"tcp": {"backend": "tcp"}, "tcp_tls": {"backend": "tcp", "security": "tls"}, "mpi": {"backend": "mpi"}}
PORTS = {"tcp": 29400, "tcp_tls": 29401}
RATES = {"100mbit": 100e6, "1gbit": 1e9}
PATIENCE = 120  # seconds


class Contestant:
    """Two ranks that make steps when told by FIFOs (stepper.h, ddp_compute.py)."""

    def __init__(self, base, word):
        self.base, self.word = str(base), word
        self.commands, self.replies, self.processes = [], [], []
        for rank in range(2):
            for files, end in ((self.commands, "commands"), (self.replies, "replies")):
                os.mkfifo(f"{base}{rank}.{end}", 0o600)
                files.append(open(os.open(f"{base}{rank}.{end}", os.O_RDWR), "r+b", buffering=0))

    def start(self, command, cores, log):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "link0",
                       "DTRAIN_STATE_DIR": self.base + "state"}
        bound = ["taskset", "-c", cores] if cores else []
        self.processes.append(subprocess.Popen([*bound, *command], env=environment, stdout=log, stderr=log))

    def steps(self, count):
        for file in self.commands:
            file.write(f"{self.word}{count}\n".encode())
        times = [[int(word) for word in self.line(file).split()] for file in self.replies]
        return [max(pair) / 1e6 for pair in zip(*times)]

    def line(self, file):
        text, end = b"", time.monotonic() + PATIENCE
        os.set_blocking(file.fileno(), False)
        while not text.endswith(b"\n"):
            if any(process.poll() not in (None, 0) for process in self.processes) or time.monotonic() > end:
                raise RuntimeError(f"{self.base}: a rank has ended, or did not answer in {PATIENCE} s")
            text += file.read(1 << 16) or b""
            if not text.endswith(b"\n"):
                time.sleep(0.002)
        return text.decode()

    def end(self, word):
        for file in self.commands:
            file.write(f"{word}\n".encode())
        for process in self.processes:
            process.wait(60)


def bed(verb, hosts, *arguments):
    subprocess.run([BED, verb, hosts, *arguments], check=True)


def start_ours(name, folder, hosts, program, batch, hyperparameters, log):
    contestant = Contestant(folder / f"{name}-", "")
    experiment = {"name": "two-hosts", "entrypoint": str(program), "resources": {"slots_per_trial": 2}, "communication": OURS[name],
                  "hyperparameters": {**hyperparameters, "global_batch_size": 2 * batch}, "data": {"fifo": contestant.base},
                  "searcher": {"max_length": {"batches": 1_000_000}}}
    (folder / f"{name}.yaml").write_text(json.dumps(experiment))
    arguments = [str(program), str(folder / f"{name}.yaml"), "--run-dir", str(folder / name)]
    if OURS[name]["backend"] == "mpi":
        contestant.start([BED, "mpirun", hosts, "--host", "nodea:1,nodeb:1", "-np", "2", "-x", "OMP_NUM_THREADS", "-x", "MKL_NUM_THREADS",
                          "-x", "DTRAIN_STATE_DIR", *arguments], None, log)
        return contestant
    for rank, host in enumerate("ab"):
        meeting = ["env", f"RANK={rank}", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=nodea", f"MASTER_PORT={PORTS[name]}"]
        contestant.start([BED, "run", hosts, host, *meeting, *arguments], str(rank), log)
    return contestant


def start_ddp(folder, hosts, model, batch, hyperparameters, log):
    contestant = Contestant(folder / "ddp-", "ddp ")
    for rank, host in enumerate("ab"):
        contestant.start([BED, "run", hosts, host, str(ROOT / ".deps/peers/bin/python"), "-B", str(ROOT / "tests/bench/ddp_compute.py"),
                          str(rank), "2", str(folder / "store"), contestant.base, model, str(batch), json.dumps(hyperparameters), "1"],
                         str(rank), log)
    return contestant


def settled(folder):  # a run tries its strategies in its first steps
    plan = folder / "plan.json"
    return plan.exists() and "strategy" in json.loads(plan.read_text())


def measure(binaries, hosts, model, link, turns, folder):
    program, batch, steps, hyperparameters = MODELS[model]
    with open(folder / "log", "ab") as log:
        contestants = {name: start_ours(name, folder, hosts, binaries / program, batch, hyperparameters, log) for name in OURS}
        contestants["ddp"] = start_ddp(folder, hosts, model, batch, hyperparameters, log)
        try:
            for name, contestant in contestants.items():
                for turn in range(20):
                    contestant.steps(steps)
                    if turn > 0 and (name == "ddp" or settled(folder / name)):
                        break
            times = {name: [] for name in contestants}
            for _ in range(turns):
                for name, contestant in contestants.items():
                    times[name] += contestant.steps(steps)[1:]
            for name, contestant in contestants.items():
                contestant.end("end" if name == "ddp" else "0")
        except Exception:
            sys.stderr.write((folder / "log").read_text(errors="replace"))
            raise
    parameters = int((folder / "ddp-parameters").read_text())
    medians = {name: statistics.median(values) for name, values in times.items()}
    row = {"model": model, "link": link, "parameters": parameters, "batch_per_rank": batch,
           **{f"{name}_ms": round(value, 2) for name, value in medians.items()},
           **{f"ddp_over_{name}": round(medians["ddp"] / medians[name], 3) for name in OURS},
           "floor_ms": round(parameters * 32e3 / RATES[link], 2) if link in RATES else None, "steps": len(times["ddp"])}
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path, metavar="BIN_FOLDER")
    parser.add_argument("--links", default="unshaped,1gbit,100mbit")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--turns", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as scratch:
        hosts = f"{scratch}/hosts"
        bed("up", hosts, "unshaped")
        try:
            for model in arguments.models.split(","):
                for link in arguments.links.split(","):
                    folder = Path(scratch) / f"{model}-{link}"
                    folder.mkdir()
                    bed("rate", hosts, link)
                    measure(arguments.binaries.resolve(), hosts, model, link, arguments.turns, folder)
        finally:
            bed("down", hosts)


if __name__ == "__main__":
    main()
