"""The limits that dtrain-calibrate measures against independent measurements, in turns: a STREAM-like loop in C, and matrix
products of oneDNN as the distribution packages it. As many processes as ranks run at once, pinned as ranks are. Goal: each
within 10%. Prints one JSON object.

    limits.py BIN_FOLDER [--ranks N] [--turns N]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("limits_peer.c")


def compile_peer(folder):
    program = folder / "limits_peer"
    command = ["cc", "-O3", "-march=native", "-o", str(program), str(SOURCE), "-ldnnl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}limits.py: scripts/setup.sh bench installs oneDNN (libdnnl-dev)")
    return program


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def ours(program, cpus):
    command = [str(program), "--threads", "1", "--ranks", str(len(cpus)), "--cpus", ":".join(map(str, cpus))]
    answer = json.loads(subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout)
    limits = answer["limits"]
    return {"memory_gb_s": limits["memory_gb_s"], **limits["gflops"], "seconds": answer["seconds"],
            "matmul_default": limits.get("matmul_default_gflops")}


def theirs(program, cpus):
    """The median of processes that run at the same time."""
    processes = [subprocess.Popen([str(program)], env=environment(), stdout=subprocess.PIPE, text=True,
                                  preexec_fn=lambda cpu=cpu: os.sched_setaffinity(0, [cpu])) for cpu in cpus]
    answers = [json.loads(process.communicate()[0]) for process in processes]
    return {name: statistics.median(one[name] for one in answers) for name in answers[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_folder", type=Path)
    parser.add_argument("--ranks", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: arguments.ranks]
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder))
        for _ in range(arguments.turns):
            turns.append((ours(arguments.bin_folder / "dtrain-calibrate", cpus), theirs(peer, cpus)))

    # Other programs only take away: of each side the best turn counts, as in the calibration.
    def best(side, name):
        return max(turn[side][name] or 0 for turn in turns)

    result = {"ranks": arguments.ranks, "seconds": round(max(turn[0]["seconds"] for turn in turns), 2)}
    for name in ("memory_gb_s", "float32", "bfloat16"):
        mine, other = best(0, name), best(1, name)
        result[name] = {"calibrated": round(mine, 1), "independent": round(other, 1),
                        "ratio": round(mine / other, 3) if other else None}
    result["memory_gb_s"]["independent_ordinary_stores"] = round(best(1, "memory_moved_gb_s"), 1)
    result["float32_default_path"] = round(best(0, "matmul_default"), 1) or None
    ratios = [result[name]["ratio"] for name in ("memory_gb_s", "float32", "bfloat16") if result[name]["ratio"]]
    result["worst_ratio"] = max(ratios, key=lambda ratio: abs(ratio - 1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
