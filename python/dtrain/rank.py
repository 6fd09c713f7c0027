"""Runs a script, or a trial of it, as a rank: what `dtrain launch` starts for ``entrypoint: train.py`` and
``entrypoint: train.py:MyTrial``.

    python -m dtrain.rank SCRIPT[:CLASS] [ARGUMENTS] -- EXPERIMENT.yaml [OPTIONS]
"""
from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def _trial_class(script: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    trial = getattr(module, name, None)
    if trial is None:
        raise AttributeError(f"{script} has no class {name}")
    return trial


def _without_ours(error: BaseException) -> str:
    """The traceback from the script's own frames on."""
    trace = error.__traceback__
    here = os.path.dirname(__file__)
    while trace is not None and (trace.tb_frame.f_code.co_filename.startswith(here)
                                 or "runpy" in trace.tb_frame.f_code.co_filename
                                 or "importlib" in trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    from . import moving

    return "".join(traceback.format_exception(type(error), error, trace)).rstrip() + moving.advice(error)


def _end_of_script(session: Any, script: Path) -> int:
    if session._session is not None or "DTRAIN_LAUNCHER_FD" in os.environ:  # then the launcher says that no rank has joined
        return session.end(None)
    print(f"dtrain: {script} has ended, and has not called dtrain.init()", file=sys.stderr)
    return 1


def _wait_for_a_start() -> None:
    """In the waiting process of a host, which has imported torch and dtrain and nothing else: returns in each new rank."""
    from . import session, trial  # noqa: F401
    from ._native import serve_nursery
    import torch._dynamo  # the first optimizer imports it, for a second

    session.variables_of_fork = variables = dict(entry.split(b"=", 1) for entry in serve_nursery())
    os.environb.clear()
    os.environb.update(variables)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # as in a process that has just imported it


def main() -> int:
    try:
        marker = len(sys.argv) - 1 - sys.argv[::-1].index("--")
    except ValueError:
        print("usage: python -m dtrain.rank SCRIPT[:CLASS] [ARGUMENTS] -- EXPERIMENT.yaml [OPTIONS]", file=sys.stderr)
        return 2
    target, own, rank_arguments = sys.argv[1], sys.argv[2:marker], sys.argv[marker + 1:]
    name = ""
    if not target.endswith(".py"):
        target, _, name = target.rpartition(":")
    script = Path(target)
    sys.path[0] = str(script.parent)
    sys.argv = [str(script), *own]
    if "DTRAIN_NURSERY" in os.environ:
        _wait_for_a_start()

    from . import session
    from .trial import run_trial

    arguments = [str(script), *rank_arguments]
    session.rank_arguments = arguments
    try:
        if name:
            trial = _trial_class(script, name)
            session.start_anew_if_too_late()
            return run_trial(trial, arguments)
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leave:
        if leave.code in (None, 0):
            return _end_of_script(session, script)
        if session._session is not None and session._session._loop.state == session._State.ENDED:
            return leave.code if isinstance(leave.code, int) else 1
        if not isinstance(leave.code, int):
            print(leave.code, file=sys.stderr)
        session.end(f"it ended with sys.exit({leave.code!r})")
        return leave.code if isinstance(leave.code, int) else 1
    except BaseException as error:
        return session.end(_without_ours(error)) or 1
    return _end_of_script(session, script)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the run has written everything; what Python would destroy now may still be the engine's
