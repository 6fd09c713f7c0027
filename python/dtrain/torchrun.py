"""Records a script that torchrun has started, and whose process groups are dtrain's: ``init_process_group("dtrain")`` is all it says.

The run has the records of ``dtrain run --as-is``, and nothing else of it: the script computes as ever.
"""
from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

#: Of the run that this process records; None: it records none.
record: Any = None


def is_to_be_recorded(rank: int, size: int) -> bool:
    """Whether a process whose first group has this rank and size is a rank of a run that nobody records yet."""
    session = sys.modules.get("dtrain.session")
    return (os.environ.get("DTRAIN_RECORD", "true").lower() != "false"
            and all(name in os.environ for name in VARIABLES)
            and (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
            and "DTRAIN_LAUNCHER_FD" not in os.environ  # that is a rank of `dtrain launch` or `dtrain run`
            and multiprocessing.parent_process() is None  # such a process ends without calling what it has registered
            and threading.current_thread() is threading.main_thread()
            and (session is None or session.current() is None and session.rank_arguments is None))


def begin(announce: Callable[[], None]) -> Any:
    """Starts the run on this rank, and returns the observer of its exchange; None: it could not start, and has said why.
    ``announce`` tells the other ranks' groups how this process ends. Collective."""
    global record
    from . import exits
    from ._native import UnchangedScript
    from .script_start import arguments_of
    from .step_hooks import StepHooks

    settings = {"as_is": "exchange", "max_restarts": 0, "optimizations": {"matmul": "default", "operators": "default"}}
    arguments, contents = arguments_of(None, None, settings, None)
    state = torch.get_rng_state()
    started = UnchangedScript(arguments, faster=False)
    torch.set_rng_state(state)
    if contents is not None:  # the run has a copy
        shutil.rmtree(contents.parent, ignore_errors=True)
    if not started.is_open:
        return None
    record = started
    from . import as_is
    StepHooks(record, as_is.stop)

    def end(error: str | None) -> int:
        code = as_is.end(record, error)
        if code != 0:  # the process ends at once
            announce()
        return code

    exits.watch(end)
    return record.observer
