"""What sharded gradients (ZeRO-2) save and cost: an MLP on four ranks, two on each of two hosts (network namespaces; needs
root), or all on one host over MPI.

    sharded_gradients.py BIN [--json] [--runs 5] [--hosts 2|1] [--rate unshaped] [--width 2048] [--depth 6] [--rows 64]

Each run leaves the choice open (`sharded_gradients: auto`), so steps with whole and with sharded gradients take turns in it;
a step takes as long as its slowest rank. The ratio is the median of the runs' ratios, each of two medians. Two more runs, one
of each kind, measure the resident part of the gradients' memory between steps by mincore() and compare the weights' bits.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import SOURCE, Build, overrides, run, write_experiment  # noqa: E402

BED = str(SOURCE / "tests" / "harness" / "two_hosts.sh")
RANKS = 4
MOST_BATCHES = 60  # the comparison ends before


def train(build, folder, name, arguments, sharded, batches):
    folder = folder / name
    folder.mkdir()
    file = write_experiment(
        folder / "experiment.yaml", name="gradients", entrypoint=build.program("gradients_trial"),
        hyperparameters={"global_batch_size": arguments.rows * RANKS, "width": arguments.width, "depth": arguments.depth},
        resources={"slots_per_trial": RANKS}, searcher={"max_length": {"batches": batches}}, scheduling_unit=1,
        optimizations={"sharded_optimizer": True, "sharded_gradients": sharded}, communication={"timeout": 120},
        checkpoint_policy="none" if sharded == "auto" else "best")
    if arguments.hosts == 2:
        start = [BED, "mpirun", os.environ["TWO_HOSTS"], "--host", "nodea:2,nodeb:2", "-x", "OMP_NUM_THREADS"]
        sets = []
    else:
        start = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "--bind-to", "none"]
        sets = ["communication.backend=mpi"]
    return run([*start, "-np", str(RANKS), build.program("gradients_trial"), str(file), "--run-dir", str(folder / "run"),
                *overrides(sets)], folder / "run", deadline=1200).expect(0)


def measure(build, folder, arguments):
    whole, sharded = (train(build, folder, name, arguments, name == "sharded", 8) for name in ("whole", "sharded"))
    memory = [one.metrics("training")[-1]["metrics"] for one in (whole, sharded)]
    turns = []
    for number in range(arguments.runs):
        one = train(build, folder, f"run-{number}", arguments, "auto", MOST_BATCHES).json("plan.json")["strategy"]["gradients"]
        if "whole_ms" not in one:
            sys.exit(f"no comparison was made: {one}")
        turns.append(one)
    ratios = [one["sharded_ms"] / one["whole_ms"] for one in turns]
    return {"ranks": RANKS, "hosts": arguments.hosts, "rate": arguments.rate,
            "gradients_mb": memory[0]["bytes"] / 1e6, "whole_resident_mb": memory[0]["resident"] / 1e6,
            "sharded_resident_mb": memory[1]["resident"] / 1e6,
            "resident_ratio": memory[1]["resident"] / memory[0]["resident"],
            "same_bits": whole.weights_file.read_bytes() == sharded.weights_file.read_bytes(),
            "whole_ms": statistics.median(one["whole_ms"] for one in turns),
            "sharded_ms": statistics.median(one["sharded_ms"] for one in turns),
            "ratio": statistics.median(ratios), "ratios": ratios}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=2)
    parser.add_argument("--rate", default="unshaped")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rows", type=int, default=64, help="samples of a rank")
    arguments = parser.parse_args()
    if arguments.hosts == 2 and "TWO_HOSTS" not in os.environ:
        os.execv(BED, [BED, "with", arguments.rate, sys.executable, "-B", *sys.argv])
    with tempfile.TemporaryDirectory(prefix="dtrain-sharded-gradients-") as scratch:
        result = measure(Build(arguments.bin, "gradients_trial"), Path(scratch), arguments)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
