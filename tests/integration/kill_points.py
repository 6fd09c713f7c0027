"""Runs whose ranks die at each step of a recovery, against the same run without a break: the same bits.

    kill_points.py BIN [--cases 12] [--seed 1] [--only STEP]

A case is one death: in attempt N of a run, rank R gets SIGKILL instead of its n-th call to the file system below a folder, or of its
n-th message to another process (tests/checkpoint/fault_layer.cpp). The folder and the calls say at which step of the recovery that
is; n, R and the order of the steps are drawn by the seed, which is printed. Each attempt of a run has such a death, or two of them,
until no cases are left to it; the deaths of later attempts are deaths during a recovery.

The script fails if a run ends in another way than the undisturbed one, or if not half of the deaths came about, or none of several at
one step: a call may never come.
The runs stay where it fails.
"""
import argparse
import collections
import json
import random
import stat
import sys

from harness import Build, Workplace, memory_of, write_experiment
from kills import Launch, samples
from resume import differences, what_is_left

RANKS = 2
BATCHES = 180
STEP_MS = 12  # so long that publishing a rank's own state takes a small share of it: then survivors complete states
DEATHS_OF_A_RUN = 4
SEVERAL = 4  # a step that is drawn so often must be reached once
# Where a rank dies: {name: (folder, most calls, also opened files)}; "messages" are in no folder. The steps with AFTER are those of a
# survivor of another death.
STEPS = {
    "batch": ("samples", 40, False),      # at the start of a batch; the others must notice it
    "publish": ("memory", 20, False),     # while a state by the clock is written to memory
    "notice": ("messages", 1, False),     # a survivor, where it tells the launcher that it saves, or stops
    "complete": ("memory", 8, True),      # a survivor, where the ranks agree on the last batch and its state is completed
    "rebuild": ("rendezvous", 3, False),  # rank 0 of the next attempt, where it says how it is reached
    "open": ("run", 6, True),             # a rank of the next attempt, where it opens the files of the run
    "read": ("memory", 6, True),          # a rank of the next attempt, where it reads the state
}
AFTER = "notice", "complete"
PROGRAM = """#!/bin/sh
# Counts the starts of each rank. A process that waits to become a rank has no number, and there is none here.
starts="{folder}/starts-$DTRAIN_RANK"
echo >> "$starts"
fault="{folder}/fault-$(wc -l < "$starts")-$DTRAIN_RANK"
[ ! -e "$fault" ] || exec env LD_PRELOAD={layer} $(cat "$fault") {program} "$@"
exec {program} "$@"
"""


def experiment(build, folder):
    folder.mkdir()
    program = folder / "program"
    program.write_text(PROGRAM.format(folder=folder, program=build.program("kills_trial"),
                                      layer=build.bin.parent / "tests" / "checkpoint_fault_layer.so"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return write_experiment(
        folder / "experiment.yaml", name="kill_points", entrypoint=str(program),
        hyperparameters={"global_batch_size": 16 * RANKS, "folder": str(folder), "step_ms": STEP_MS},
        resources={"slots_per_trial": RANKS, "slot_type": "cpu"}, searcher={"max_length": {"batches": BATCHES}},
        min_validation_period={"batches": 40}, scheduling_unit=20, min_checkpoint_period={"batches": 20}, max_restarts=1000,
        recovery={"standby": 0}, communication={"timeout": 20})


def in_some_order(dice, steps):
    """Each step once, in one order after the other."""
    while True:
        yield from dice.sample(steps, len(steps))


def draw(dice, steps, folder):
    """The deaths of one run, whose steps are the next of `steps`: {(attempt, rank): (step, settings of the fault layer)}."""
    roots = {"memory": memory_of(folder / "run"), "run": folder / "run", "rendezvous": folder / "private"}
    faults = {}
    attempt = 0
    while attempt < DEATHS_OF_A_RUN:
        attempt += 1
        # Before a death nothing recovers, and no state is in memory at once.
        step = next(steps) if attempt > 1 else "batch"
        rank = 0 if step == "rebuild" else dice.randrange(RANKS)
        death = folder / f"death-{attempt}"
        for step, rank in [("batch", 1 - rank), (step, rank)] if step in AFTER else [(step, rank)]:
            name, most, reads = STEPS[step]
            where = {"MESSAGES": 1} if name == "messages" else {"ROOT": folder / f"samples-{rank}" if name == "samples" else roots[name]}
            settings = where | {"KIND": "kill", "AT": dice.randint(1, most), "AFTER" if step in AFTER else "MARK": death}
            settings.update({"READS": 1} if reads else {})
            faults[attempt, rank] = step, " ".join(f"DTRAIN_FAULT_{key}={value}" for key, value in settings.items())
    return faults


def deaths_of(events):
    """Of each attempt the ranks that were killed by a signal."""
    attempt, found = 0, collections.defaultdict(set)
    for event in events:
        if event["event"] == "attempt_started":
            attempt = event["attempt"]
        elif event["event"] == "rank_ended" and "SIGKILL" in event["status"]:
            found[attempt].add(event["rank"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", choices=sorted(STEPS))
    arguments = parser.parse_args()
    build = Build(arguments.bin, "kills_trial")
    print(f"seed {arguments.seed}", flush=True)
    workplace = Workplace("kill-points")
    whole = Launch(build, workplace.path / "whole", experiment(build, workplace.path / "whole"))
    whole.wait()
    expected, expected_samples = what_is_left(whole.folder / "run"), samples(whole.folder, RANKS)[0]

    dice = random.Random(arguments.seed)
    steps = in_some_order(dice, [arguments.only] if arguments.only else list(STEPS))
    reached, drawn, failed = collections.Counter(), collections.Counter(), 0
    runs = -(-arguments.cases // DEATHS_OF_A_RUN)
    for number in range(runs):
        folder = workplace.path / f"run-{number}"
        file = experiment(build, folder)
        faults = draw(dice, steps, folder)
        for (attempt, rank), (_, settings) in faults.items():
            (folder / f"fault-{attempt}-{rank}").write_text(settings)
        launch = Launch(build, folder, file)
        launch.wait()
        dead = deaths_of(json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines())
        hit = [step for (attempt, rank), (step, _) in faults.items() if rank in dead[attempt]]
        reached.update(hit)
        drawn.update(step for step, _ in faults.values())
        problems = [f"it has left {one}" for one in launch.what_it_leaves()]
        problems += [f"another {one}" for one in differences(expected, what_is_left(folder / "run"))]
        seen, others = samples(folder, RANKS)
        problems += others + [f"another sample log of rank {rank}" for rank in range(RANKS) if seen[rank] != expected_samples[rank]]
        if problems:
            failed += 1
            print(f"run {number}: {faults}", *problems, sep="\n    ", flush=True)
        if number % 10 == 9:
            print(f"{number + 1} of {runs} runs: {sum(reached.values())} deaths, {failed} runs differ", flush=True)
    print(f"{sum(reached.values())} deaths in {runs} runs: " + ", ".join(f"{step} {count}" for step, count in sorted(reached.items())),
          flush=True)
    missed = [step for step, times in sorted(drawn.items()) if times >= SEVERAL and not reached[step]]
    if failed or missed or sum(reached.values()) < arguments.cases / 2:
        sys.exit(f"{failed} runs differ; never reached, though drawn {SEVERAL} times or more: {', '.join(missed) or 'no step'}; half of "
                 f"the deaths must be reached; the runs are in {workplace.path}")
    workplace.remove()


if __name__ == "__main__":
    main()
