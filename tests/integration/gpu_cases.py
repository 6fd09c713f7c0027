"""Runs of gpu_trial on fake GPUs and on CPUs, several in one process for each rank, and what they leave behind."""
import json
import os
import socket
import subprocess

from harness import DEADLINE, Result, environment, write_experiment

FAKE_GPUS = 4


def gpu_environment(build, **extra):
    """What makes this a machine with fake GPUs."""
    libraries = build.bin.parent / "tests" / "fake_gpus"
    return {"LD_LIBRARY_PATH": str(libraries), "DTRAIN_FAKE_GPUS": str(FAKE_GPUS), **extra}


def free_ports(count):
    """Nothing listens there; they tell jobs apart."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Run:
    """One case on one kind of device: its folder, and what each rank said of it."""

    def __init__(self, folder, lines):
        self.folder = folder
        logs = sorted((folder / "run" / "logs").glob("rank-*.log"))
        self.result = Result(max(line["exit_code"] for line in lines), "".join(log.read_text() for log in logs),
                             folder / "run")
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
    """Of each rank its runs, one after the other in one process (gpu_trial --cases); gives what they left, rank by rank."""
    ranks = len(plans)
    processes = []
    for rank, plan in enumerate(plans):
        (folder / f"{name}-cases-{rank}.json").write_text(json.dumps(plan))
        own = environment(**gpu_environment(build), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                          LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
        command = [build.program("gpu_trial"), "--cases", str(folder / f"{name}-cases-{rank}.json"),
                   str(folder / f"{name}-results-{rank}.json")]
        output = open(folder / f"{name}-output-{rank}", "w")
        processes.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        output.close()
    try:
        codes = [process.wait(4 * DEADLINE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    output = "".join((folder / f"{name}-output-{rank}").read_text() for rank in range(ranks))
    if any(codes):
        raise AssertionError(f"{ranks} ranks ended with {codes}:\n{output}")
    return [[json.loads(line) for line in (folder / f"{name}-results-{rank}.json").read_text().splitlines()]
            for rank in range(ranks)]
