"""The step of an unchanged script of torch.distributed on two ranks: over gloo, over dtrain, and under `dtrain run --as-is`.

    distributed_step.py BIN [--json] [--quick] [--seconds N] [--models mlp,mlp_adamw,fsdp,cnn,gpt] [--no-collectives]

All contestants of a model live at once and take turns of some steps; who has no turn waits. A step is that of its slowest rank. Prints
medians in milliseconds, and ratios: MODEL_ratio is the step over gloo to that over dtrain, MODEL_as_is_ratio the step over gloo to that
under `dtrain run --as-is`, and MODEL_plain_ratio the same with --plain; MODEL_limit is what an exchange that takes no time would bring
(DDP with a hook that exchanges nothing). fsdp_ratio is FSDP2 over gloo to FSDP2 over dtrain, and fsdp_of_fake the step over dtrain to
that over PyTorch's "fake" group, which exchanges nothing. MODEL_same_weights: whether the weights over gloo and over dtrain have the same
sum at the end. mlp and fsdp have SGD with momentum and 64 samples, mlp_adamw AdamW and 32.

`collectives`: medians in microseconds of operations of 2 KB to 25 MB on ordinary memory, gloo and dtrain in turns in the same processes
(`registered_us`: an all-reduce of memory from the group), and Open MPI in processes of its own where there is one. The ranks of a
process group meet before each operation.
"""
import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import runpy
import select
import shutil
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
MLP = {"width": 2048, "depth": 6}
# Name of a contestant, kind, and how `dtrain run` starts it (None: torchrun's variables alone).
DDP = [("gloo", "ddp:gloo", None), ("dtrain", "ddp:dtrain", None)]
AS_IS = ("as_is", "ddp:gloo", ["--as-is"])
PLAIN = ("plain", "ddp:gloo", ["--as-is", "--plain"])
# The model of compute_models.py, samples of a rank in a batch, optimizer, steps of a turn, sizes, contestants.
MODELS = {
    "mlp": ("mlp", 64, "sgd", 4, MLP, [*DDP, ("none", "none:gloo", None), AS_IS, PLAIN]),
    "mlp_adamw": ("mlp", 32, "adamw", 4, MLP, [*DDP, ("none", "none:gloo", None), AS_IS]),
    "fsdp": ("mlp", 64, "sgd", 4, MLP, [("gloo", "fsdp:gloo", None), ("dtrain", "fsdp:dtrain", None), ("fake", "fsdp:fake", None)]),
    "cnn": ("fashion_cnn", 64, "adamw", 12, {}, [*DDP, AS_IS, PLAIN]),
    "gpt": ("gpt", 4, "adamw", 4, {"tokens": 8192, "length": 128, "layers": 6, "heads": 5, "width": 320}, [*DDP, AS_IS, PLAIN]),
}
QUICK = ("mlp", "fsdp")
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
    """`kind`: as distributed_script.py has it; `model`: one of MODELS. `options`: of `dtrain run`, if that starts it."""

    def __init__(self, name, kind, options, folder, model, bin_folder):
        self.folder = folder / name
        self.folder.mkdir()
        self.base = f"{self.folder}/"
        self.log = self.folder / "log"
        name, batch, optimizer, self.turn, sizes, *_ = model
        for rank in range(RANKS):
            os.mkfifo(f"{self.base}{rank}.commands")
            os.mkfifo(f"{self.base}{rank}.replies")
        self.start([str(HERE / "distributed_script.py"), kind, name, str(batch), json.dumps(sizes), optimizer, self.base], options, bin_folder)
        self.commands = [os.open(f"{self.base}{rank}.commands", os.O_RDWR) for rank in range(RANKS)]
        self.replies = [os.open(f"{self.base}{rank}.replies", os.O_RDWR) for rank in range(RANKS)]
        self.times = []

    def start(self, script, options, bin_folder):
        if options:
            environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
            environment |= {"DTRAIN_PYTHON": PYTHON, "PYTHONPATH": f"{bin_folder.parent / 'python'}:{HERE}",
                            "DTRAIN_STATE_DIR": str(self.folder / "state")}
            self.processes = [subprocess.Popen(
                [bin_folder / "dtrain", "run", *options, "--slots", str(RANKS), "--run-dir", self.folder / "run", *script],
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


def measure(model, arguments, seconds):
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        contestants = {name: Contestant(name, kind, options, Path(folder), MODELS[model], arguments.bin)
                       for name, kind, options in MODELS[model][-1]}
        for contestant in contestants.values():
            contestant.steps(6)  # DDP makes its buckets anew in the first ones
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for contestant in contestants.values():
                contestant.times += contestant.steps(contestant.turn)[1:]  # the first finds cold caches
        sums = {name: contestant.end() for name, contestant in contestants.items()}
        times = {name: statistics.median(contestant.times) for name, contestant in contestants.items()}
    result = {f"{model}_{name}_ms": round(value, 2) for name, value in times.items()}

    def ratio(name, over, under):
        if over in times and under in times:
            result[name] = round(times[over] / times[under], 3)

    ratio(f"{model}_ratio", "gloo", "dtrain")
    ratio(f"{model}_as_is_ratio", "gloo", "as_is")
    ratio(f"{model}_plain_ratio", "gloo", "plain")
    ratio(f"{model}_limit", "gloo", "none")
    ratio(f"{model}_of_fake", "dtrain", "fake")
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
    """A rank of the collectives, in a fork: gloo and dtrain take turns."""
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    ours = dist.new_group(backend="dtrain")
    cpu = torch.device("cpu")
    rows = []
    for operation, size in itertools.product(OPERATIONS, SIZES):
        def memory(bytes_of, backend=None):
            count = bytes_of // 4
            if backend is None or not backend.supports_tensor_alloc(cpu):
                return torch.ones(count)
            return backend.allocate_tensor(count, dtype=torch.float32, device=cpu).fill_(1)

        def of(group, backend=None):
            return group, (memory(size, backend), memory(size, backend), memory(size // RANKS, backend))

        subjects = {"gloo": of(dist.group.WORLD), "dtrain": of(ours)}
        if operation == "all_reduce":
            subjects["registered"] = of(ours, ours._get_backend(cpu))
        times = {name: [] for name in subjects}
        turns, of_a_turn = (6, 2) if size > 1 << 20 else (8, 8)
        for _ in range(turns):
            for name, (group, tensors) in subjects.items():
                for turn in range(of_a_turn + 1):
                    dist.barrier(group=group)
                    began = time.perf_counter_ns()
                    one_collective(operation, group, *tensors)
                    if turn > 0:  # the first finds the caches full of another's data
                        times[name].append((time.perf_counter_ns() - began) / 1e3)
        medians = {name: statistics.median(values) for name, values in times.items()}
        rows.append({"op": operation, "bytes": size, **{f"{name}_us": round(value, 1) for name, value in medians.items()},
                     "ratio": round(medians["gloo"] / medians["dtrain"], 2)})
    if rank == 0:
        Path(file).write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure_mpi(file):
    """A rank of Open MPI's collectives, started by mpirun. MPI's functions and objects are those of its library."""
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    world, real, add = (ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in ("comm_world", "float", "op_sum"))
    assert mpi.MPI_Init(None, None) == 0
    in_place = ctypes.c_void_p(1)
    rows = []
    for operation, size in itertools.product(OPERATIONS, SIZES):
        whole, other = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        count, part = size // 4, size // 4 // RANKS
        calls = {"all_reduce": lambda: mpi.MPI_Allreduce(in_place, whole, count, real, add, world),
                 "all_gather": lambda: mpi.MPI_Allgather(other, part, real, whole, part, real, world),
                 "reduce_scatter": lambda: mpi.MPI_Reduce_scatter_block(whole, other, part, real, add, world),
                 "all_to_all": lambda: mpi.MPI_Alltoall(other, part, real, whole, part, real, world)}
        times = []
        for turn in range(15 if size > 1 << 20 else 80):
            mpi.MPI_Barrier(world)
            began = time.perf_counter_ns()
            assert calls[operation]() == 0
            if turn >= 3:
                times.append((time.perf_counter_ns() - began) / 1e3)
        rows.append(round(statistics.median(times), 1))
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        Path(file).write_text(json.dumps(rows))
    mpi.MPI_Finalize()


def mpi_medians(file):
    """Of the rows' operations in their order; empty where there is no Open MPI."""
    mpirun = shutil.which("mpirun")
    if not mpirun or subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout.find("Open MPI") < 0:
        return []
    ended = subprocess.run([mpirun, "--allow-run-as-root", "--bind-to", "core", "-n", str(RANKS), sys.executable,
                            __file__, "--mpi-rank", file], capture_output=True, text=True)
    if ended.returncode:
        print(f"Open MPI: {ended.stderr[-500:]}", file=sys.stderr)
        return []
    return json.loads(Path(file).read_text())


def collectives():
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        file, port = f"{folder}/rows", free_port()
        ranks = [FORK.Process(target=measure_collectives, args=(rank, port, file)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        rows = json.loads(Path(file).read_text())
        for row, median in zip(rows, mpi_medians(f"{folder}/mpi")):
            row["openmpi_us"] = median
        return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: Path(text).resolve())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="mlp, fsdp and collectives alone")
    parser.add_argument("--seconds", type=float, help="of turns, for each model")
    parser.add_argument("--models", type=lambda text: text.split(","), help="empty: none")
    parser.add_argument("--no-collectives", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.bin.parent / "python"))
    import dtrain.distributed  # noqa: F401

    result = {}
    if not arguments.no_collectives:  # first, because a fork of a process that has computed lacks its threads
        result["collectives"] = collectives()
    for model in filter(None, arguments.models if arguments.models is not None else QUICK if arguments.quick else MODELS):
        found = measure(model, arguments, arguments.seconds or (8 if arguments.quick else 30))
        print(model, found, file=sys.stderr, flush=True)
        result |= found
    print(json.dumps(result) if arguments.json else "\n".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--mpi-rank"]:
        measure_mpi(sys.argv[2])
    else:
        main()
