"""The step of models in Python on two ranks: on dtrain's engine (a script's own loop in three lines, and a Trial) beside
the same model under DistributedDataParallel, in one plain PyTorch process with as many threads, and as a C++ Trial.

    python_step.py BIN [--json] [--quick] [--seconds N] [--models mlp,fashion_cnn,gpt,resnet18]
                   [--contestants lines,trial,cpp,ddp,expert,compiled,compiled_lines,plain] [--mixed-precision bf16]

All contestants live at once and take turns of some steps; who has no turn waits. A step is that of its slowest rank.
Prints medians in milliseconds, and ratios: mlp_ratio is that of DDP to the three lines, mlp_trial_ratio that of DDP to a
Trial, mlp_plain_ratio that of the plain process to the three lines, and mlp_cpp_ratio that of the C++ Trial to the three
lines. mlp_expert_ratio is that of DDP as an expert sets it up (fused AdamW, channels_last for images; bf16 where
--mixed-precision is bf16) to the three lines, and mlp_compiled_ratio the same with torch.compile on both sides. Where
torch.compile does not work, mlp_compiled_problem says why, and its contestants are left out.
"""
import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("DTRAIN_PEERS_PYTHON", str(HERE.parents[1] / ".deps/peers/bin/python"))
RANKS = 2
# Samples of a rank in a batch, steps of a turn, sizes: those of bench_compute (compute_model.cpp).
MODELS = {
    "mlp": (32, 5, {"width": 2048, "depth": 6}),
    "fashion_cnn": (64, 12, {}),
    "gpt": (4, 4, {"tokens": 8192, "length": 128, "layers": 6, "heads": 5, "width": 320}),
    "resnet18": (16, 5, {}),
}
# The same in C++: the program of bench_compute that trains it.
PROGRAMS = {"mlp": "bench_step_trial", "fashion_cnn": "bench_fashion_trial", "gpt": "bench_compute_trial",
            "resnet18": "bench_compute_trial"}
SHORT = {"fashion_cnn": "cnn", "resnet18": "resnet"}
WARM_UP = 30  # steps of ours: how to step is tried out in the first ones
OURS = ("lines", "trial", "cpp", "compiled_lines")
# The contestants of ddp_compute.py, by --mixed-precision.
PEERS = {"none": {"ddp": "ddp", "plain": "ddp", "expert": "expert", "compiled": "compiled32"},
         "bf16": {"ddp": "ddp", "plain": "ddp", "expert": "expertbf", "compiled": "compiled"}}
# torch.compile keeps the strides of weights, which channels_last would change (docs/python.md).
COMPILED = {"memory_format": "contiguous"}


class Contestant:
    """The processes of one way to train, which step when they are told to."""

    def __init__(self, kind, folder, model, arguments):
        self.kind = kind
        self.folder = folder / kind
        self.folder.mkdir()
        self.base = f"{self.folder}/"
        batch, self.turn, sizes = MODELS[model]
        self.peer = kind if kind in OURS else PEERS[arguments.mixed_precision][kind]
        self.ranks = 1 if kind == "plain" else RANKS
        for rank in range(self.ranks):
            os.mkfifo(f"{self.base}{rank}.commands")
            os.mkfifo(f"{self.base}{rank}.replies")
        environment = os.environ | {"OMP_NUM_THREADS": str(RANKS // self.ranks), "PYTHONPATH": str(HERE)}
        log = open(self.folder / "log", "w")
        start = {"stdout": log, "stderr": subprocess.STDOUT, "env": environment}
        if kind == "cpp":
            environment.pop("OMP_NUM_THREADS")
            self.peer = None
            self.launch(arguments, start, {
                "entrypoint": str(Path(arguments.bin).resolve() / PROGRAMS[model]), "data": {"fifo": self.base},
                "hyperparameters": {"global_batch_size": batch * RANKS, "model": model, **sizes}})
        elif kind in OURS:
            package = Path(arguments.bin).parent / "python"
            environment |= {"PYTHONPATH": f"{package}:{HERE}", "DTRAIN_PYTHON": PYTHON}
            environment.pop("OMP_NUM_THREADS")
            script = str(HERE / "python_step_rank.py") + (":Step" if kind == "trial" else "")
            self.launch(arguments, start, {
                "entrypoint": [script, kind, self.base, model, str(batch), json.dumps(sizes)],
                "hyperparameters": {"global_batch_size": batch * RANKS}})
        else:
            count = batch * (RANKS if kind == "plain" else 1)
            self.processes = [subprocess.Popen(
                [PYTHON, HERE / "ddp_compute.py", str(rank), str(self.ranks), f"{self.folder}/store", self.base, model,
                 str(count), json.dumps(sizes), str(RANKS // self.ranks)], **start) for rank in range(self.ranks)]
        # Opened for both directions, so that nothing waits for a process that could not start.
        self.commands = [os.open(f"{self.base}{rank}.commands", os.O_RDWR) for rank in range(self.ranks)]
        self.replies = [os.open(f"{self.base}{rank}.replies", os.O_RDWR) for rank in range(self.ranks)]
        self.times = []

    def launch(self, arguments, start, sections):
        file = self.folder / "experiment.yaml"
        file.write_text(json.dumps({
            "name": self.kind, "resources": {"slots_per_trial": RANKS},
            "optimizations": {"mixed_precision": arguments.mixed_precision,
                              **(COMPILED if self.kind == "compiled_lines" else {})},
            "searcher": {"max_length": {"batches": 1_000_000}}, "checkpoint_policy": "none", **sections}))
        # The contestants take turns; none of them is to queue behind another.
        start["env"]["DTRAIN_STATE_DIR"] = str(self.folder / "state")
        self.processes = [subprocess.Popen([Path(arguments.bin) / "dtrain", "launch", file, "--run-dir",
                                            self.folder / "run"], **start)]

    def steps(self, count):
        self.command(f"{self.peer} {count}" if self.peer else str(count))
        lines = [self.reply(replies) for replies in self.replies]
        return [max(int(time_of) for time_of in of_ranks) / 1e6 for of_ranks in zip(*lines)]

    def command(self, text):
        for commands in self.commands:
            os.write(commands, f"{text}\n".encode())

    def reply(self, replies):
        line = b""
        while not line.endswith(b"\n"):
            if select.select([replies], [], [], 1)[0]:
                line += os.read(replies, 65536)
            elif any(process.poll() is not None for process in self.processes):
                sys.exit(f"{self.kind} has ended; its output:\n{(self.folder / 'log').read_text()[-3000:]}")
        return line.split()

    def end(self):
        """The times are taken: whoever would begin another epoch, or is slow to end, is stopped."""
        self.command("0" if self.kind == "cpp" else "end")
        for process in self.processes:
            for stop in (None, process.terminate, process.kill):
                if stop:
                    stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                    break


def measure(model, arguments, seconds):
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        contestants = [Contestant(kind, Path(folder), model, arguments) for kind in arguments.contestants]
        problem = {}
        for contestant in sorted(contestants, key=lambda one: one.kind == "compiled_lines"):  # after compiled
            if contestant.kind == "compiled_lines" and problem:
                continue
            if 0 in contestant.steps(WARM_UP if contestant.kind in OURS else 3):
                text = Path(f"{contestant.base}{contestant.peer}.problem").read_text().strip()
                if contestant.kind != "compiled":
                    sys.exit(f"{contestant.kind} does not work: {text}")
                problem["compiled_problem"] = text
        if problem:
            for contestant in contestants:
                if contestant.kind in ("compiled", "compiled_lines"):
                    contestant.end()
            contestants = [one for one in contestants if one.kind not in ("compiled", "compiled_lines")]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for contestant in contestants:
                contestant.times += contestant.steps(contestant.turn)[1:]  # the first finds cold caches
        for contestant in contestants:
            contestant.end()
        return {contestant.kind: statistics.median(contestant.times) for contestant in contestants}, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the MLP and the CNN, three lines and DDP")
    parser.add_argument("--seconds", type=float, help="of turns, for each model")
    parser.add_argument("--models", default="")
    parser.add_argument("--contestants", default="")
    parser.add_argument("--mixed-precision", default="none", choices=list(PEERS))
    arguments = parser.parse_args()
    models = arguments.models.split(",") if arguments.models else ["mlp", "fashion_cnn"] if arguments.quick else list(MODELS)
    default = "lines,ddp" if arguments.quick else "lines,trial,cpp,ddp,expert,compiled,compiled_lines,plain"
    arguments.contestants = (arguments.contestants or default).split(",")
    result = {}
    for model in models:
        times, problem = measure(model, arguments, arguments.seconds or (6 if arguments.quick else 20))
        short = SHORT.get(model, model)
        result |= {f"{short}_{kind}_ms": round(value, 2) for kind, value in times.items()}
        result |= {f"{short}_{name}": text for name, text in problem.items()}
        for name, over, under in (("ratio", "ddp", "lines"), ("trial_ratio", "ddp", "trial"),
                                  ("plain_ratio", "plain", "lines"), ("expert_ratio", "expert", "lines"),
                                  ("compiled_ratio", "compiled", "compiled_lines"), ("cpp_ratio", "cpp", "lines")):
            if over in times and under in times:
                result[f"{short}_{name}"] = round(times[over] / times[under], 3)
        print(model, {kind: f"{value:.1f} ms" for kind, value in times.items()}, file=sys.stderr, flush=True)
    print(json.dumps(result) if arguments.json else "\n".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
