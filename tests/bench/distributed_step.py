"""The step of an unchanged script of torch.distributed on two ranks: over gloo, over dtrain, and under `dtrain run --as-is`.

    distributed_step.py BIN [--json] [--quick] [--seconds N] [--models mlp,cnn,gpt] [--collectives]

All contestants live at once and take turns of some steps; who has no turn waits. A step is that of its slowest rank. Prints
medians in milliseconds, and ratios: MODEL_ratio is the step over gloo to that over dtrain, MODEL_as_is_ratio the step over gloo
to that under `dtrain run --as-is`; mlp_limit is what an exchange that takes no time would bring (DDP with a hook that exchanges
nothing). fsdp_ratio is FSDP2 over gloo to FSDP2 over dtrain, and fsdp_of_fake the step over dtrain to that over PyTorch's
"fake" group, which exchanges nothing. same_weights: whether the weights over gloo and over dtrain have the same sum at the end.
--collectives: medians in microseconds of operations of 2 KB to 25 MB on ordinary memory, in turns in the same processes.
"""
import argparse
import contextlib
import json
import multiprocessing
import os
import runpy
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
PYTHON = os.environ.get("DTRAIN_PEERS_PYTHON", str(HERE.parents[1] / ".deps/peers/bin/python"))
RANKS = 2
FORK = multiprocessing.get_context("fork")
# The model of compute_models.py, samples of a rank in a batch, steps of a turn, sizes.
MODELS = {
    "mlp": ("mlp", 32, 4, {"width": 2048, "depth": 6}),
    "cnn": ("fashion_cnn", 64, 12, {}),
    "gpt": ("gpt", 4, 4, {"tokens": 8192, "length": 128, "layers": 6, "heads": 5, "width": 320}),
}
SIZES = (2 << 10, 64 << 10, 1 << 20, 25 << 20)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def become_rank(rank, port, log, arguments, extra):
    """In a fork of this process, which has imported torch and computed nothing."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **extra)
    torch.set_num_threads(1)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


class Contestant:
    """`kind`: as distributed_script.py has it; `model`: one of MODELS. Under `dtrain run --as-is` if `as_is`."""

    def __init__(self, kind, as_is, folder, model, bin_folder):
        self.folder = folder / (kind.replace(":", "-") + ("-as-is" if as_is else ""))
        self.folder.mkdir()
        self.base = f"{self.folder}/"
        self.log = self.folder / "log"
        name, batch, self.turn, sizes = model
        for rank in range(RANKS):
            os.mkfifo(f"{self.base}{rank}.commands")
            os.mkfifo(f"{self.base}{rank}.replies")
        self.start([str(HERE / "distributed_script.py"), kind, name, str(batch), json.dumps(sizes), self.base], as_is, bin_folder)
        self.commands = [os.open(f"{self.base}{rank}.commands", os.O_RDWR) for rank in range(RANKS)]
        self.replies = [os.open(f"{self.base}{rank}.replies", os.O_RDWR) for rank in range(RANKS)]
        self.times = []

    def start(self, script, as_is, bin_folder):
        if as_is:
            environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
            environment |= {"DTRAIN_PYTHON": PYTHON, "PYTHONPATH": f"{bin_folder.parent / 'python'}:{HERE}",
                            "DTRAIN_STATE_DIR": str(self.folder / "state")}
            self.processes = [subprocess.Popen(
                [bin_folder / "dtrain", "run", "--as-is", "--slots", str(RANKS), "--run-dir", self.folder / "run", *script],
                env=environment, stdout=open(self.log, "w"), stderr=subprocess.STDOUT)]
            return
        port = free_port()
        self.processes = [FORK.Process(target=become_rank, args=(rank, port, self.log, script, {})) for rank in range(RANKS)]
        for process in self.processes:
            process.start()

    def has_ended(self):
        return any((process.poll() if isinstance(process, subprocess.Popen) else process.exitcode) is not None
                   for process in self.processes)

    def ask(self, text):
        for commands in self.commands:
            os.write(commands, f"{text}\n".encode())
        return [self.reply(replies) for replies in self.replies]

    def reply(self, replies):
        line = b""
        while not line.endswith(b"\n"):
            if select.select([replies], [], [], 1)[0]:
                line += os.read(replies, 65536)
            elif self.has_ended():
                sys.exit(f"{self.folder.name} has ended; its output:\n{self.log.read_text()[-3000:]}")
        return line.split()

    def steps(self, count):
        return [max(int(time_of) for time_of in of_ranks) / 1e6 for of_ranks in zip(*self.ask(count))]

    def end(self):
        """The sum of the weights, of rank 0."""
        with contextlib.closing(self):
            return float(self.ask("end")[0][0])

    def close(self):
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20) if isinstance(process, subprocess.Popen) else process.join(20)
            process.kill()


def contestants_of(model, quick):
    """Name, kind, and whether under `dtrain run --as-is`."""
    contestants = [("gloo", "ddp:gloo", False), ("dtrain", "ddp:dtrain", False)]
    if model == "mlp":
        contestants += [("none", "none:gloo", False), ("fsdp_gloo", "fsdp:gloo", False), ("fsdp", "fsdp:dtrain", False),
                        ("fsdp_fake", "fsdp:fake", False)]
    return contestants if quick else [*contestants, ("as_is", "ddp:gloo", True)]


def measure(model, arguments, seconds):
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        contestants = {name: Contestant(kind, as_is, Path(folder), MODELS[model], arguments.bin)
                       for name, kind, as_is in contestants_of(model, arguments.quick)}
        for contestant in contestants.values():
            contestant.steps(6)  # DDP makes its buckets anew in the first ones
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for contestant in contestants.values():
                contestant.times += contestant.steps(contestant.turn)[1:]  # the first finds cold caches
        counts = {len(contestant.times) for contestant in contestants.values()}
        assert len(counts) == 1, counts  # so that the weights can be compared
        sums = {name: contestant.end() for name, contestant in contestants.items()}
        times = {name: statistics.median(contestant.times) for name, contestant in contestants.items()}
    result = {f"{model}_{name}_ms": round(value, 2) for name, value in times.items()}

    def ratio(name, over, under):
        if over in times and under in times:
            result[name] = round(times[over] / times[under], 3)

    ratio(f"{model}_ratio", "gloo", "dtrain")
    ratio(f"{model}_as_is_ratio", "gloo", "as_is")
    ratio(f"{model}_limit", "gloo", "none")
    if model == "mlp":
        ratio("fsdp_ratio", "fsdp_gloo", "fsdp")
        ratio("fsdp_of_fake", "fsdp", "fsdp_fake")
        result["fsdp_same_weights"] = sums["fsdp"] == sums["fsdp_gloo"]
    result[f"{model}_same_weights"] = sums["dtrain"] == sums["gloo"]
    return result


def one_collective(operation, group, whole, other, part):
    if operation == "all_reduce":
        dist.all_reduce(whole, group=group)
    elif operation == "all_gather":
        dist.all_gather_into_tensor(whole, part, group=group)
    elif operation == "reduce_scatter":
        dist.reduce_scatter_tensor(part, whole, group=group)
    else:
        dist.all_to_all_single(whole, other, group=group)


def measure_collectives(rank, port, file):
    """A rank of --collectives, in a fork: gloo and dtrain take turns."""
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    groups = {"gloo": dist.group.WORLD, "dtrain": dist.new_group(backend="dtrain")}
    rows = []
    for operation in OPERATIONS:
        for size in SIZES:
            whole, other, part = torch.ones(size // 4), torch.ones(size // 4), torch.ones(size // 4 // RANKS)
            times = {name: [] for name in groups}
            for turn in range(30 if size >= 1 << 20 else 200):
                for name, group in groups.items():
                    began = time.perf_counter_ns()
                    one_collective(operation, group, whole, other, part)
                    if turn >= 5:
                        times[name].append((time.perf_counter_ns() - began) / 1e3)
            medians = {name: statistics.median(values) for name, values in times.items()}
            rows.append({"op": operation, "bytes": size, **{f"{name}_us": round(value, 1) for name, value in medians.items()},
                         "ratio": round(medians["gloo"] / medians["dtrain"], 2)})
    if rank == 0:
        Path(file).write_text(json.dumps(rows))
    dist.destroy_process_group()


def collectives():
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        file, port = f"{folder}/rows", free_port()
        ranks = [FORK.Process(target=measure_collectives, args=(rank, port, file)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return json.loads(Path(file).read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: Path(text).resolve())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the MLP, without --as-is")
    parser.add_argument("--seconds", type=float, help="of turns, for each model")
    parser.add_argument("--models", default="")
    parser.add_argument("--collectives", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.bin.parent / "python"))
    import dtrain.distributed  # noqa: F401

    result = {}
    if arguments.collectives:
        result["collectives"] = collectives()
    for model in arguments.models.split(",") if arguments.models else ["mlp"] if arguments.quick else list(MODELS):
        found = measure(model, arguments, arguments.seconds or (15 if arguments.quick else 30))
        print(model, found, file=sys.stderr, flush=True)
        result |= found
    print(json.dumps(result) if arguments.json else "\n".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
