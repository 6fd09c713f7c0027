"""Ranks as forks of a process that has imported torch: a case takes a second instead of ten.

They find each other as under torchrun. This process must not compute with torch: a fork would inherit threads that it
does not have.
"""
import contextlib
import json
import multiprocessing
import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
import unittest
from pathlib import Path

import package
import torch
import torch._dynamo

import harness

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
FORK = multiprocessing.get_context("fork")


def use_package():
    """The package of the build whose bin folder is the first argument. Returns the environment of its launches."""
    harness.BUILD.open(sys.argv.pop(1), "dtrain")
    environment = package.of(harness.BUILD)
    sys.path.insert(0, environment["PYTHONPATH"].split(":")[0])
    return environment


def main(**options):
    use_package()
    unittest.main(verbosity=2, **options)


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


def _rank(target, folder, experiment, rank, ranks, port, more_arguments):
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
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
    begins = [str(experiment), "--run-dir", str(folder / "run")] if experiment else []
    arguments = [target, *begins, *more_arguments]
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


def start(target, folder, experiment, ranks, *arguments):
    """Starts a script, or script.py:Class, on so many ranks, with the run folder/run; returns their processes. Without an experiment
    the arguments name the run that goes on."""
    port = free_port()
    processes = [FORK.Process(target=_rank, args=(target, folder, experiment, rank, ranks, port, arguments))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    return processes


def finish(processes, folder):
    """Waits for the end of the ranks of start(). A harness.Result."""
    for process in processes:
        process.join(harness.DEADLINE)
        if process.is_alive():
            process.kill()
            process.join()
    output = ""
    for rank in range(len(processes)):
        with contextlib.suppress(FileNotFoundError):
            output += (folder / f"rank-{rank}.log").read_text(errors="replace")
    codes = [process.exitcode for process in processes]
    return harness.Result(max(codes, key=abs), output, folder / "run")


def run(target, folder, experiment, ranks, *arguments):
    return finish(start(target, folder, experiment, ranks, *arguments), folder)


class WarmPython:
    """Starts scripts by themselves, as `python SCRIPT ARGUMENTS…` does: see warm_python.py."""

    def __init__(self, **environment):
        self.environment = harness.environment(**environment)
        self.server = subprocess.Popen([sys.executable, "-B", Path(__file__).with_name("warm_python.py")],
                                       env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, command, folder, run_dir):
        """`command`: a script and its arguments, started in this folder. A harness.Result."""
        log = folder / "output"
        request = {"command": [str(word) for word in command], "folder": str(folder), "log": str(log),
                   "environment": self.environment}
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        if not select.select([self.server.stdout], [], [], harness.DEADLINE)[0]:
            self.close()
            raise AssertionError(f"{command} did not end in {harness.DEADLINE} s: {log.read_text(errors='replace')}")
        return harness.Result(int(self.server.stdout.readline()), log.read_text(errors="replace"), run_dir)

    def close(self):
        self.server.kill()
        self.server.communicate()
