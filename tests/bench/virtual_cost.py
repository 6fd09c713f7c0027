"""What virtual ranks cost a step, model by model: a small CNN, an MLP and a GPT with AdamW, on two cores.

    bench_virtual [--json] [--quick] [--seconds 90] [--models cnn,mlp,gpt]
    virtual_cost.py BIN_FOLDER [the same]

Six runs of a model are alive at once and take turns of a few steps each, so that what the machine does meanwhile hits all of them
alike; the first step of a turn does not count. All have the same global batch and one thread a rank:

    two            two ranks as they come, without virtual ranks
    two_of_two     2 virtual ranks on two processes (goal, virtual_cost: at most 1.02 of `two`)
    two_of_four    4 virtual ranks on two processes (goal, virtual_half_cost: at most 1.1 of `two`, of the MLP 1.3)
    one            one rank as it comes
    one_of_two     2 virtual ranks on one process
    one_of_four    4 virtual ranks on one process

A step takes as long as its slowest rank. Each ratio is the median over the turns of a turn's ratio of two medians. Printed beside
them: the milliseconds of each, the memory of its processes together (pages that several of them map count once), and what a process
receives in a batch, in sizes of all gradients.
"""
import argparse
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import Build, environment, write_experiment  # noqa: E402

RUNS = {"two": (2, 0), "two_of_two": (2, 2), "two_of_four": (2, 4), "one": (1, 0), "one_of_two": (1, 2), "one_of_four": (1, 4)}
COSTS = {"virtual_cost": ("two_of_two", "two"), "virtual_half_cost": ("two_of_four", "two"),
         "one_of_two_cost": ("one_of_two", "one"), "one_of_four_cost": ("one_of_four", "one")}
# Of each model: the global batch, the steps of a turn, the hyperparameters.
MODELS = {"cnn": (64, 6, {}), "mlp": (64, 6, {"width": 1024, "depth": 6}),
          "gpt": (4, 5, {"tokens": 2048, "length": 128, "layers": 4, "heads": 4, "width": 256})}
# By then a run has compared its ways to compute: as it comes several, with virtual ranks on several processes replicated and sharded
# updates, on one process none.
WARM_UP_STEPS = {"plain": 45, "virtual": 25, "one": 6}
PATIENCE = 180  # seconds for an answer


class Steps:
    """A run that makes steps on command."""

    def __init__(self, build, folder, name, model):
        self.ranks, virtual = RUNS[name]
        self.warm_up_steps = WARM_UP_STEPS["plain" if not virtual else "virtual" if self.ranks > 1 else "one"]
        batch, self.steps, hyperparameters = MODELS[model]
        self.folder, self.log = folder / name, folder / f"{name}.log"
        self.folder.mkdir()
        base = self.folder / "rank-"
        for rank in range(self.ranks):
            for end in ("commands", "replies"):
                os.mkfifo(f"{base}{rank}.{end}")
        self.commands = [os.open(f"{base}{rank}.commands", os.O_RDWR) for rank in range(self.ranks)]
        self.replies = [os.open(f"{base}{rank}.replies", os.O_RDWR) for rank in range(self.ranks)]
        self.pending = [b""] * self.ranks
        experiment = write_experiment(
            self.folder / "experiment.yaml", name="virtual", entrypoint=build.program("bench_virtual_trial"),
            hyperparameters={"global_batch_size": batch, "model": model, **hyperparameters},
            resources={"slots_per_trial": self.ranks, "slot_type": "cpu"}, searcher={"max_length": {"batches": 10**6}},
            checkpoint_policy="none", recovery={"interval": "off"}, data={"fifo": str(base)},
            reproducibility={"virtual_ranks": virtual})
        self.command = [build.program("dtrain"), "launch", str(experiment), "--run-dir", str(self.folder / "run")]
        self.environment = environment(DTRAIN_STATE_DIR=str(self.folder / "state"))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def tell(self, steps):
        for fd in self.commands:
            os.write(fd, b"%d\n" % steps)

    def answer(self, rank):
        end = time.monotonic() + PATIENCE
        while b"\n" not in self.pending[rank]:
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{self.folder.name} does not answer:\n{self.log.read_text()}")
            if select.select([self.replies[rank]], [], [], 1)[0]:
                self.pending[rank] += os.read(self.replies[rank], 1 << 16)
        line, self.pending[rank] = self.pending[rank].split(b"\n", 1)
        return [int(word) for word in line.split()]

    def turn(self, steps=None):
        """Milliseconds of the steps."""
        self.tell(steps or self.steps)
        return [max(of_ranks) / 1e6 for of_ranks in zip(*[self.answer(rank) for rank in range(self.ranks)])][1:]

    def memory_mb(self):
        kilobytes = 0
        for line in (self.folder / "run" / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "rank_started":
                rollup = Path(f"/proc/{event['pid']}/smaps_rollup").read_text()
                kilobytes += int(re.search(r"^Pss: +(\d+)", rollup, re.M).group(1))
        return kilobytes * 1024 / 1e6

    def received(self):
        """In sizes of all gradients, as `dtrain launch --dry-run` tells it; None without virtual ranks."""
        plan = subprocess.run([*self.command[:3], "--dry-run"], env=self.environment, capture_output=True, text=True, check=True)
        found = re.search(r"receives (\d+) times", plan.stdout)
        return int(found.group(1)) if found else None

    def end(self):
        self.tell(0)
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            for fd in (*self.commands, *self.replies):
                os.close(fd)


def measure(build, model, seconds, least_turns):
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-virtual-") as scratch:
        runs = {name: Steps(build, Path(scratch), name, model) for name in RUNS}
        try:
            for run in runs.values():
                run.turn(run.warm_up_steps)
            turns = []
            while len(turns) < least_turns or time.monotonic() < end:
                order = list(runs) if len(turns) % 2 == 0 else list(reversed(runs))
                medians = {name: statistics.median(runs[name].turn()) for name in order}
                turns.append(medians)
            row = {"model": model, "turns": len(turns)}
            for cost, (ours, plain) in COSTS.items():
                row[cost] = round(statistics.median(turn[ours] / turn[plain] for turn in turns), 4)
            for name, run in runs.items():
                row[f"{name}_ms"] = round(statistics.median(turn[name] for turn in turns), 3)
                row[f"{name}_mb"] = round(run.memory_mb(), 1)
                if (received := run.received()) is not None:
                    row[f"{name}_received"] = received
            return row
        finally:
            for run in runs.values():
                run.end()


def main():
    parser = argparse.ArgumentParser(prog="bench_virtual")
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="less than a minute for all models")
    parser.add_argument("--seconds", type=int, default=90, help="of all models together, their starts included")
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench_virtual needs two cores")
    build = Build(arguments.bin, "bench_virtual_trial")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    models = arguments.models.split(",")
    seconds = 42 if arguments.quick else arguments.seconds
    result = {"models": [measure(build, model, seconds / len(models), 3) for model in models]}
    for row in result["models"]:
        result.update({f"{row['model']}_{cost}": row[cost] for cost in COSTS})
    # Of the model that it costs most.
    result["virtual_cost"] = max(row["virtual_cost"] for row in result["models"])
    result["virtual_half_cost"] = max(row["virtual_half_cost"] for row in result["models"])
    if arguments.json:
        print(json.dumps(result))
        return
    for row in result["models"]:
        print(*(f"{name} {value}" for name, value in row.items()), sep="\n  ")


if __name__ == "__main__":
    main()
