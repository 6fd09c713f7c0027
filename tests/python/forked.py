"""Ranks as forks of a process that has imported torch: a case takes a second instead of ten.

They find each other as under torchrun. This process must not compute with torch: a fork would inherit threads that it
does not have.
"""
import contextlib
import multiprocessing
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path

import package
import torch
import torch._dynamo

import harness

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
FORK = multiprocessing.get_context("fork")


def use_package(build):
    sys.path.insert(0, package.of(build)["PYTHONPATH"].split(":")[0])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def in_a_fork(function, *arguments):
    """Its result."""
    ours, theirs = FORK.Pipe(duplex=False)

    def body():
        try:
            theirs.send((True, function(*arguments)))
        except BaseException:
            theirs.send((False, traceback.format_exc()))

    process = FORK.Process(target=body)
    process.start()
    theirs.close()
    try:
        worked, result = ours.recv()
    except EOFError:
        worked, result = False, "the process has died"
    process.join()
    if not worked:
        raise AssertionError(result)
    return result


def _rank(target, folder, experiment, rank, ranks, port):
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    extra = {"DTRAIN_PYTHON": sys.executable}
    if ranks > 1:
        extra |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = harness.environment(**extra)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    arguments = [target, str(experiment), "--run-dir", str(folder / "run")]
    code = 1
    try:
        script, _, name = target.partition(":")
        from dtrain import session, trial
        if name:
            code = trial.run_trial(getattr(__import__(Path(script).stem), name), arguments)
        else:
            session.rank_arguments = arguments
            runpy.run_path(script, run_name="__main__")
            code = session.end(None)
    except SystemExit as leave:
        code = leave.code or session.end(None)
    except BaseException:
        code = session.end(traceback.format_exc()) or 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def run(target, folder, experiment, ranks):
    """Runs a script, or script.py:Class, on so many ranks. A harness.Result of the run folder/run."""
    port = free_port()
    processes = [FORK.Process(target=_rank, args=(target, folder, experiment, rank, ranks, port)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(harness.DEADLINE)
        if process.is_alive():
            process.kill()
    output = ""
    for rank in range(ranks):
        with contextlib.suppress(FileNotFoundError):
            output += (folder / f"rank-{rank}.log").read_text(errors="replace")
    codes = [process.exitcode for process in processes]
    return harness.Result(max(codes, key=abs), output, folder / "run")
