"""A run whose processes are killed one after the other, against the same run without a break: the same bits.

    kills.py BIN [--every 3] [--seconds 60] [--seed N] [--ranks 2] [--sharded] [--stop-every 0] [--least-useful 0]

Every so many seconds a random process of the run gets SIGKILL: a rank, the monitor, the saver, or any other that the launcher has
started; the launcher is spared. After so many seconds no more is killed, so that the run ends. With --stop-every a rank gets
SIGSTOP that often, too; whoever waits for it must notice. The dice are seeded, and the seed is printed.

Equal are: the final weights, all files of the last checkpoint, metrics.jsonl without its times, the samples of each batch on each
rank, also where a batch was done again. Nothing is left behind: no process, no file in /dev/shm, no socket. The share of
useful time is printed, and must be at least --least-useful.
"""
import argparse
import collections
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import Build, Workplace, environment, write_experiment
from resume import differences, what_is_left
from watched_launch import Launch


def experiment(build, folder, arguments, batches):
    folder.mkdir()
    return write_experiment(
        folder / "experiment.yaml", name="kills", entrypoint=build.program("kills_trial"),
        hyperparameters={"global_batch_size": 16 * arguments.ranks, "folder": str(folder)},
        resources={"slots_per_trial": arguments.ranks, "slot_type": "cpu"}, searcher={"max_length": {"batches": batches}},
        min_validation_period={"batches": 150}, scheduling_unit=20, min_checkpoint_period={"batches": 50}, max_restarts=1000,
        optimizations={"sharded_optimizer": arguments.sharded}, communication={"timeout": 20})


def samples(folder, ranks):
    """Of each rank {batch: sum}; a batch that was done again must have had the same samples."""
    of_ranks, problems = [], []
    for rank in range(ranks):
        sums = {}
        for line in (folder / f"samples-{rank}").read_text().splitlines():
            batch, value = line.split()
            if sums.setdefault(int(batch), value) != value:
                problems.append(f"rank {rank} had other samples when batch {batch} was done again")
        of_ranks.append(sums)
    return of_ranks, problems


class Faults:
    """One fault after the other at fixed times, until the time is over or the run has ended."""

    def __init__(self, launch, dice, arguments):
        self.launch, self.dice = launch, dice
        self.done = collections.Counter()
        began = time.monotonic()
        times = [(index * arguments.every, "kill") for index in range(1, 1 + int(arguments.seconds / arguments.every))]
        if arguments.stop_every:
            times += [(index * arguments.stop_every, "stop") for index in range(1, 1 + int(arguments.seconds / arguments.stop_every))]
        for at, kind in sorted(times):
            while time.monotonic() < began + at and not launch.has_ended():
                time.sleep(0.02)
            if launch.has_ended():
                return
            self.disturb(kind)

    def disturb(self, kind):
        by_name = collections.defaultdict(list)
        for pid, name in sorted(self.launch.processes().items()):
            if kind == "kill" or name == "kills_trial":
                by_name[name].append(pid)
        if not by_name:
            self.done["nothing was there"] += 1
            return
        # Ranks are most of it: each process has the same chance.
        name = self.dice.choice([name for name, pids in sorted(by_name.items()) for _ in pids])
        try:
            os.kill(self.dice.choice(by_name[name]), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            self.done[f"{kind} {name}"] += 1
        except ProcessLookupError:
            self.done["it had just ended"] += 1


def rate(build, folder, arguments):
    """Batches a second of an undisturbed run, by the median batch."""
    launch = Launch(build, folder, experiment(build, folder, arguments, 200))
    launch.wait()
    records = [json.loads(line) for line in (folder / "run" / "profile" / "rank-0000.jsonl").read_text().splitlines()]
    return 1e9 / statistics.median(record["wall_ns"] for record in records if record["record"] == "step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--every", type=float, default=3, help="seconds")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--stop-every", type=float, default=0, help="seconds")
    parser.add_argument("--least-useful", type=float, default=0, help="percent")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    build = Build(arguments.bin, "kills_trial")
    workplace = Workplace("kills")
    print(f"seed {arguments.seed}, a process is killed every {arguments.every:g} s for {arguments.seconds:g} s", flush=True)
    # Undisturbed, the run would take half of the time in which it is disturbed.
    batches = max(300, int(rate(build, workplace.path / "rate", arguments) * arguments.seconds / 2))
    whole = Launch(build, workplace.path / "whole", experiment(build, workplace.path / "whole", arguments, batches))
    whole.wait()
    folder = workplace.path / "broken"
    broken = Launch(build, folder, experiment(build, folder, arguments, batches))
    began = time.monotonic()
    faults = Faults(broken, random.Random(arguments.seed), arguments)
    broken.wait()
    took_s = time.monotonic() - began
    problems = [f"it has left {one}" for one in broken.what_it_leaves()]
    problems += [f"another {one}" for one in differences(what_is_left(whole.folder / "run"), what_is_left(folder / "run"))]
    expected, _ = samples(whole.folder, arguments.ranks)
    seen, others = samples(folder, arguments.ranks)
    problems += others
    problems += [f"another sample log of rank {rank}" for rank in range(arguments.ranks) if seen[rank] != expected[rank]]
    summary = json.loads(subprocess.run([build.program("dtrain"), "summary", "--json", str(folder / "run")], check=True,
                                        env=environment(), stdout=subprocess.PIPE).stdout)
    useful = 100 * (summary.get("useful_share") or 0)
    if useful < arguments.least_useful:
        problems.append(f"useful time {useful:.1f}%, wanted {arguments.least_useful:g}%")
    told = ", ".join(f"{name} {count}" for name, count in sorted(faults.done.items()))
    print(f"{batches} batches in {took_s:.0f} s, {len(summary['attempts'])} attempts; {told}; useful time {useful:.1f}%: "
          f"{'equal' if not problems else 'FAILED'}", flush=True)
    for problem in problems:
        print(f"    {problem}", flush=True)
    if problems:
        sys.exit(f"the runs are in {workplace.path}")
    workplace.remove()


if __name__ == "__main__":
    main()
