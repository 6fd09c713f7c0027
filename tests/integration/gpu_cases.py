"""Runs of gpu_trial on fake GPUs and on CPUs, several in one process for each rank, and what they leave behind."""
import many_runs
from harness import write_experiment
from many_runs import free_ports

FAKE_GPUS = 4


def gpu_environment(build, **extra):
    """What makes this a machine with fake GPUs."""
    libraries = build.bin.parent / "tests" / "fake_gpus"
    return {"LD_LIBRARY_PATH": str(libraries), "DTRAIN_FAKE_GPUS": str(FAKE_GPUS), **extra}


class Run:
    """One case on one kind of device: its folder, and what each rank said of it."""

    def __init__(self, folder, lines):
        self.folder = folder
        self.result = many_runs.result_of(folder / "run", lines)
        self.reports = [report for line in lines for report in line["reports"]]
        self.counts = [line["counts"] for line in lines]


def experiment(build, case, ranks, slot_type, path):
    """A case without a memory format has `contiguous`: runs on two kinds of device are compared, and the clock would
    choose for each of them."""
    hyperparameters = {"global_batch_size": 6 * ranks, "model": case["model"], "optimizer": case["optimizer"],
                       "batches": case["batches"][:ranks], **case.get("hyperparameters", {})}
    searcher = {"metric": "loss", "max_length": case.get("length", {"batches": 50})}
    return write_experiment(
        path, name="gpu", entrypoint=build.program("gpu_trial"), hyperparameters=hyperparameters, searcher=searcher,
        resources={"slots_per_trial": ranks, "slot_type": slot_type}, optimizations={"memory_format": "contiguous", **case.get("optimizations", {})},
        **case.get("sections", {}))


def run_cases(build, folder, ranks, cases, slot_types=("cuda", "cpu")):
    """Of each case its runs on these slot types. GPUs come first: libtorch looks for CUDA once."""
    plans = [[] for _ in range(ranks)]
    folders = []
    ports = iter(free_ports(len(slot_types) * len(cases)))
    for slot_type in slot_types:
        for index, case in enumerate(cases):
            at = folder / f"{ranks}-{index}-{slot_type}"
            at.mkdir()
            folders.append(at)
            file = experiment(build, case, ranks, slot_type, at / "experiment.yaml")
            port = str(next(ports))
            for plan in plans:
                plan.append({"arguments": [str(file), "--run-dir", str(at / "run")],
                             "environment": {"MASTER_PORT": port}})
    lines = run_plans(build, folder, str(ranks), plans)
    runs = [Run(at, [of_rank[index] for of_rank in lines]) for index, at in enumerate(folders)]
    return list(zip(*(runs[begin : begin + len(cases)] for begin in range(0, len(runs), len(cases)))))


def run_plans(build, folder, name, plans):
    """Of each rank its runs of gpu_trial."""
    return many_runs.run_plans(build, "gpu_trial", folder, name, plans, **gpu_environment(build))
