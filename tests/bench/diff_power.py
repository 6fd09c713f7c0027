"""What `dtrain diff` finds: nothing between equal runs, and a stall that adds 5% to the median step.

    diff_power.py BIN [--json] [--repeats 20] [--keep FOLDER]

Real jobs of two ranks whose steps belong to A and to B in turns of two (bench_turns_trial), so that the machine's drift
hits both. Each repeat is 1,200 steps of its own, split into two run folders that `dtrain diff` compares; in every
second repeat B's ranks stall in each step, for so long that a step takes 5% longer: for 5% of the median step at first, later
for a little less, by what was measured until then, because ranks also wait for each other's stalls.
The goal: of 20 equal pairs none, and of 20 others at least 19 are found.

Beside it the same pairs as if they had been made at other times, which is all that two separate runs can offer: then the
machine's drift is noise like any other.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import Build, environment, launch, write_experiment  # noqa: E402

RANKS = 2
WARM_UP = 400
REPEAT_STEPS = 1200
TURN_STEPS = 2
STALL = 0.05
MOST_STEPS = 10_000  # of a job: later ones a dump holds as sums
FAIL_ABOVE = "2.5%"
DAY_NS = 86_400 * 10**9


def run_job(build, scratch, job, repeats, stall):
    file = write_experiment(scratch / f"job-{job}.yaml", name="turns", entrypoint=build.program("bench_turns_trial"),
                            hyperparameters={"global_batch_size": 128, "width": 384, "depth": 4},
                            resources={"slots_per_trial": RANKS},
                            searcher={"max_length": {"batches": WARM_UP + repeats * REPEAT_STEPS}},
                            optimizations={"sharded_optimizer": False},
                            data={"warm_up": WARM_UP, "repeat_steps": REPEAT_STEPS, "turn_steps": TURN_STEPS,
                                  "stall": stall})
    run_dir = scratch / f"job-{job}"
    launch(build, file, run_dir).expect(0)
    return run_dir


def place_of(batch):
    """(repeat, A or B); None in the warm-up."""
    at = batch - 1 - WARM_UP
    return (at // REPEAT_STEPS, "AB"[at % REPEAT_STEPS // TURN_STEPS % 2]) if at >= 0 else None


def split(run_dir, into):
    """Each repeat as two run folders, `into`/repeat/A and B, with the lines of their steps."""
    for rank in range(RANKS):
        files = {}
        head, tail = [], []
        name = f"rank-{rank:04}.jsonl"
        for line in (run_dir / "profile" / name).read_text().splitlines(keepends=True):
            record = json.loads(line)
            if record["record"] in ("header", "clock"):
                head.append(line)
            if record["record"] == "end":
                tail.append(line)
            if record["record"] == "window":
                sys.exit(f"{run_dir}: a window where steps in full were expected")
            place = place_of(record["batch"]) if record["record"] in ("step", "collective", "loader") else None
            if place is None:
                continue
            if place not in files:
                folder = into / str(place[0]) / place[1]
                (folder / "profile").mkdir(parents=True, exist_ok=True)
                for file in ("experiment.yaml", "plan.json"):
                    shutil.copy(run_dir / file, folder)
                files[place] = open(folder / "profile" / name, "w")
                files[place].writelines(head)
            files[place].write(line)
        for place, file in files.items():
            file.writelines(tail)
            file.close()
            for agent in (run_dir / "profile").glob("agent-*.jsonl"):
                shutil.copy(agent, into / str(place[0]) / place[1] / "profile")


def at_another_time(folder, into):
    """The same run, a day later."""
    shutil.copytree(folder, into)
    for file in (into / "profile").glob("rank-*.jsonl"):
        head, rest = file.read_text().split("\n", 1)
        header = json.loads(head)
        header["clock"]["offset_ns"] += DAY_NS
        file.write_text(json.dumps(header) + "\n" + rest)
    return into


def diff(build, a, b):
    done = subprocess.run([build.program("dtrain"), "diff", a, b, "--json", "--fail-above", FAIL_ABOVE], env=environment(),
                          capture_output=True, text=True, timeout=120, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"dtrain diff {a} {b}: exit code {done.returncode}\n{done.stderr}")
    result = json.loads(done.stdout)
    result["exit_code"] = done.returncode
    return result


def is_found(result):
    """Anything that the test calls a change."""
    tested = [result["step"], result["throughput"], *result["phases"]]
    return any(one["verdict"] in ("worse", "better") for one in tested)


def half_width(result):
    low, high = result["step"]["interval"]
    return (high - low) / 2


def measure(build, scratch, repeats):
    """`repeats` pairs of each kind."""
    equal, stalled, equal_apart, stalled_apart = [], [], [], []
    pairs = (MOST_STEPS - WARM_UP) // REPEAT_STEPS // 2 * 2
    stalls, job = [], 0
    while len(equal) < repeats:
        folder = scratch / f"split-{job}"
        changes = [one["step"]["change"] for one in stalled]
        stall = STALL * statistics.mean(stalls) / statistics.median(changes) if changes else STALL
        stalls.append(stall)
        split(run_job(build, scratch, job, pairs, stall), folder)
        for pair in range(pairs):
            a, b = folder / str(pair) / "A", folder / str(pair) / "B"
            later = at_another_time(b, folder / str(pair) / "later")
            (stalled if pair % 2 else equal).append(diff(build, a, b))
            (stalled_apart if pair % 2 else equal_apart).append(diff(build, a, later))
        job += 1
    equal, stalled, equal_apart, stalled_apart = (one[:repeats] for one in (equal, stalled, equal_apart, stalled_apart))
    every = equal + stalled
    return {
        "repeats": repeats,
        "stall": statistics.mean(stalls),
        "equal_found": sum(map(is_found, equal)),
        "stalled_found": sum(one["step"]["verdict"] == "worse" for one in stalled),
        "equal_exit_3": sum(one["exit_code"] == 3 for one in equal),
        "stalled_exit_3": sum(one["exit_code"] == 3 for one in stalled),
        "equal_change": statistics.median(one["step"]["change"] for one in equal),
        "equal_largest_change": max(abs(one["step"]["change"]) for one in equal),
        "stalled_change": statistics.median(one["step"]["change"] for one in stalled),
        "interval_half_width": statistics.median(map(half_width, every)),
        "median_step_ms": statistics.median(one["step"]["a_s"] for one in every) * 1e3,
        "turns": statistics.median(one["test"]["turns"] for one in every),
        "autocorrelation": statistics.median(one["a"]["autocorrelation"] for one in equal_apart),
        "autocorrelation_of_turns": statistics.median(one["a"]["autocorrelation"] for one in equal),
        "apart_equal_found": sum(map(is_found, equal_apart)),
        "apart_stalled_found": sum(one["step"]["verdict"] == "worse" for one in stalled_apart),
        "apart_interval_half_width": statistics.median(map(half_width, equal_apart + stalled_apart)),
        "apart_block_length": statistics.median(one["a"]["block_length"] for one in equal_apart),
        "equal_rules": sum(any(not rule["may_be_chance"] for rule in one["rules"]["new"] + one["rules"]["gone"])
                           for one in equal),
        "equal_faults": sum(bool(one["faults"]["new"] or one["faults"]["gone"]) for one in equal),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="keep the folders here")
    arguments = parser.parse_args()
    build = Build(arguments.bin, "bench_turns_trial")
    with tempfile.TemporaryDirectory(prefix="dtrain-diff-power-") as scratch:
        if arguments.keep:
            arguments.keep.mkdir(parents=True)
        result = measure(build, arguments.keep or Path(scratch), arguments.repeats)
    if arguments.json:
        print(json.dumps({key: round(value, 4) for key, value in result.items()}))
        return
    for key, value in result.items():
        print(f"{key:32} {value:.4g}")


if __name__ == "__main__":
    main()
