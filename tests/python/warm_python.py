"""Runs scripts as `python SCRIPT ARGUMENTS…` does, each in a fork of this process, which has imported torch.

A line of standard input is a request of forked.WarmPython; the answer is the exit code. A script is the module __main__ of its
process, and the interpreter ends as ever: exit codes, uncaught exceptions and atexit are Python's own.
"""
import json
import os
import sys
import types

import torch
import torch._dynamo  # noqa: F401  # the optimizers of torch import it


def become(request):
    """This process, a fork, becomes that of the script; returns the module __main__ and its code."""
    script = request["command"][0]
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    os.dup2(os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), 1)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["command"]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = os.path.abspath(script)
    with open(script) as file:
        return module, compile(file.read(), script, "exec")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            module, code = become(json.loads(line))
            # Here and not in a function: an exception of the script has passed no other frame when Python sees it.
            exec(code, vars(module))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
