"""A script of DistributedDataParallel over the backend dtrain and over NCCL's own (on CPUs: gloo's): equal losses, records of its
all-reduces, and what the records cost.

    torch_distributed.py BIN --scratch FOLDER [--gpus N] [--quick]

Several ranks on one GPU have a NCCL_HOSTID each, because NCCL refuses them otherwise. Exit codes: 0 equal and recorded, 1 not, 77 dtrain
has no module for this Python.
"""
import argparse
import json
import os
import subprocess
import sys

from launches import HERE, add_arguments, free_port, has_package, kept_variables, package_of

from harness import environment  # launches.py knows where it is

SCRIPT, DEADLINE = HERE / "ddp_script.py", 240
NEAR = 1e-5  # of losses: NCCL chooses among its algorithms for itself


class Script:
    """The script on some ranks, started as a shell would."""

    def __init__(self, arguments, ranks):
        self.arguments, self.ranks = arguments, ranks
        self.on_gpu = arguments.slot_type == "cuda"
        self.steps = 80 if arguments.quick else 300
        self.peer = "nccl" if self.on_gpu else "gloo"

    def folder(self, name):
        folder = self.arguments.scratch / f"{name}-{self.ranks}"
        folder.mkdir(parents=True)
        return folder

    def words(self, folder, backend):
        return [str(folder / "out.json"), "--backend", backend, "--steps", str(self.steps)]

    def variables(self):
        kept = kept_variables(self.arguments.libraries)
        kept.update({"PYTHONPATH": f"{package_of(self.arguments.bin)}", "GPU_CHECK_DEVICE": self.arguments.slot_type})
        return kept

    def run(self, name, backend, *words, **more):
        folder, port = self.folder(name), free_port()
        shares = self.on_gpu and self.ranks > self.arguments.gpus
        processes = []
        for rank in range(self.ranks):
            own = {"RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": self.ranks,
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **({"NCCL_HOSTID": f"dtrain-rank-{rank}"} if shares else {})}
            started = environment(**self.variables(), **more, **{key: str(value) for key, value in own.items()})
            processes.append(subprocess.Popen([sys.executable, "-B", str(SCRIPT), *self.words(folder, backend), *words], cwd=folder,
                                              env=started, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                              text=True))
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise AssertionError(f"{name}: exit codes {[process.returncode for process in processes]}:\n{''.join(outputs)}")
        return json.loads((folder / "out.json").read_text()), folder

    def run_as_is(self):
        folder = self.folder("as-is")
        command = [str(self.arguments.bin / "dtrain"), "run", "--as-is", "--plain", "--slots", str(self.ranks), "--run-dir",
                   str(folder / "run"), "--set", f"resources.slot_type={self.arguments.slot_type}", str(SCRIPT),
                   *self.words(folder, self.peer)]
        done = subprocess.run(command, cwd=folder, env=environment(**self.variables(), DTRAIN_PYTHON=sys.executable), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE)
        if done.returncode:
            raise AssertionError(f"as-is: exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        return json.loads((folder / "out.json").read_text()), folder / "run"


def check_records(script, run_dir):
    """All-reduces of each rank, with times that follow each other. What is wrong."""
    for rank in range(script.ranks):
        lines = map(json.loads, (run_dir / "profile" / f"rank-{rank:04d}.jsonl").read_text().splitlines())
        found = [line for line in lines if line["record"] == "collective" and line["operation"] == "all_reduce" and line["bytes"] > 1024]
        if len(found) < script.steps:  # several buckets a step, of which the last may end after it
            return f"rank {rank} has records of {len(found)} all-reduces in {script.steps} steps"
        wrong = [line for line in found if not line["enqueued_ns"] <= line["started_ns"] < line["ended_ns"]]
        if wrong:
            return f"rank {rank} has {len(wrong)} of {len(found)} all-reduces with wrong times, as {wrong[0]}"
    return None


def check(arguments, ranks):
    script = Script(arguments, ranks)
    theirs = [script.run("peer", script.peer)[0]]
    ours = [script.run("ours", "dtrain", "--module", "dtrain.distributed", DTRAIN_RECORD="false")[0]]
    recorded, folder = script.run("recorded", "dtrain", "--module", "dtrain.distributed")
    run_dir, = (folder / "runs").iterdir()
    theirs.append(script.run("peer-again", script.peer)[0])
    results, run_dirs = {"dtrain": ours[0], "dtrain, recorded": recorded}, [run_dir]
    if ranks <= arguments.gpus or not script.on_gpu:
        results["--as-is"], as_is = script.run_as_is()
        run_dirs.append(as_is)
    peer = min(one["milliseconds"] for one in theirs)
    print(f"  {ranks} rank{'s' if ranks > 1 else ''} over {script.peer}: {peer:.3f} ms a step", flush=True)
    good = True
    for name, result in results.items():
        worst = max(abs(a - b) for a, b in zip(theirs[0]["losses"], result["losses"], strict=True))
        good = good and worst <= NEAR
        print(f"  {name:18} {result['milliseconds']:.3f} ms, {result['milliseconds'] / peer:.3f} of it; losses differ by {worst:.0e}"
              f"{'' if worst <= NEAR else '   TOO MUCH'}", flush=True)
    for run_dir in run_dirs:
        wrong = check_records(script, run_dir)
        good = good and wrong is None
        if wrong:
            print(f"  {wrong}   WRONG", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    arguments = parser.parse_args()
    if not has_package(arguments.bin):
        return 77
    os.environ.pop("DTRAIN_RECORD", None)
    good = [check(arguments, ranks) for ranks in sorted({1, 2, *([arguments.gpus] if arguments.slot_type == "cuda" else [])})]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
