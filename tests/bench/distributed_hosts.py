"""The step of an unchanged script of torch.distributed over two hosts, joined by a link of each speed: DDP over gloo, and over dtrain.
One rank on each of two hosts (tests/harness/two_hosts.sh: network namespaces, needs root), with a core each.

    distributed_hosts.py BIN [--json] [--links unshaped,1gbit,100mbit] [--models cnn,mlp] [--steps N]

Both are alive at once and take turns of some steps, as in distributed_step.py. Prints for each model and link medians of the slower
rank's step in milliseconds, their ratio (gloo's to dtrain's), floor_ms, in which the link carries the gradients once in each direction,
and same_weights: whether the weights over gloo and over dtrain have the same sum at the end.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import distributed_step
from compute_models import make
from distributed_step import HERE, PYTHON, RANKS

BED = str(HERE.parent / "harness" / "two_hosts.sh")
# As in distributed_step.py. The script takes 40 ms and more a step over 1 Gbit/s with the smallest of them.
MODELS = {
    "cnn": ("fashion_cnn", 64, "adamw", 5, {}),
    "mlp": ("mlp", 32, "adamw", 5, {"width": 512, "depth": 6}),
    "mlp_25m": ("mlp", 32, "adamw", 3, {"width": 2048, "depth": 6}),
}
RATES = {"100mbit": 100e6, "1gbit": 1e9}
PORTS = {"gloo": 29400, "dtrain": 29401}


class Contestant(distributed_step.Contestant):
    """A backend's ranks, one on each host."""

    def __init__(self, backend, hosts, folder, model, bin_folder):
        self.hosts, self.port = hosts, PORTS[backend]
        super().__init__(backend, f"ddp:{backend}", None, folder, MODELS[model], bin_folder)

    def start(self, script, options, bin_folder):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                       "MASTER_ADDR": "nodea", "MASTER_PORT": str(self.port), "GLOO_SOCKET_IFNAME": "link0", "DTRAIN_RECORD": "false",
                       "PYTHONPATH": f"{bin_folder.parent / 'python'}:{HERE}"}
        with open(self.log, "w") as log:
            self.processes = [subprocess.Popen(
                ["taskset", "-c", str(rank % os.cpu_count()), BED, "run", self.hosts, host, "env", f"RANK={rank}", PYTHON, "-B", *script],
                env=environment, stdout=log, stderr=log) for rank, host in enumerate("ab")]


def measure(model, link, steps, hosts, folder, bin_folder):
    contestants = {backend: Contestant(backend, hosts, folder, model, bin_folder) for backend in PORTS}
    for contestant in contestants.values():
        contestant.steps(4)  # DDP makes its buckets anew in the first ones
    while len(contestants["gloo"].times) < steps:
        for contestant in contestants.values():
            contestant.times += contestant.steps(contestant.turn)[1:]  # the first finds cold caches
    sums = {backend: contestant.end() for backend, contestant in contestants.items()}
    gloo, dtrain = (statistics.median(contestants[backend].times) for backend in ("gloo", "dtrain"))
    name, _, _, _, sizes = MODELS[model]
    parameters = sum(parameter.numel() for parameter in make(name, sizes)[0]().parameters())
    return {"model": model, "link": link, "parameters": parameters, "gloo_ms": round(gloo, 2), "dtrain_ms": round(dtrain, 2),
            "ratio": round(gloo / dtrain, 3), "floor_ms": round(parameters * 32e3 / RATES[link], 2) if link in RATES else None,
            "steps": len(contestants["gloo"].times), "same_weights": sums["gloo"] == sums["dtrain"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: Path(text).resolve())
    parser.add_argument("--json", action="store_true", help="one array at the end instead of a line for each row")
    parser.add_argument("--links", default="1gbit,100mbit")
    parser.add_argument("--models", default="cnn,mlp")
    parser.add_argument("--steps", type=int, default=32, help="that count, of each")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as scratch:
        hosts = f"{scratch}/hosts"
        made = subprocess.run([BED, "up", hosts, "unshaped"])
        if made.returncode:
            sys.exit(made.returncode)
        try:
            for model in arguments.models.split(","):
                for link in arguments.links.split(","):
                    folder = Path(scratch) / f"{model}-{link}"
                    folder.mkdir()
                    subprocess.run([BED, "rate", hosts, link], check=True)
                    rows.append(measure(model, link, arguments.steps, hosts, folder, arguments.bin))
                    print(json.dumps(rows[-1]), file=sys.stderr if arguments.json else sys.stdout, flush=True)
        finally:
            subprocess.run([BED, "down", hosts], check=True)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
