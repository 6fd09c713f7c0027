"""Runs a script that does not call dtrain: what `dtrain run --as-is` starts.

    python -m dtrain.as_is SCRIPT [ARGUMENTS] -- EXPERIMENT.yaml [OPTIONS]

The script finds the variables that torchrun would have set, and a store that listens already. Its process groups of gloo and
nccl become dtrain's (``as_is: exchange``), and its steps are recorded.
"""
from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

from . import rank as rank_module
from . import torch_backend
from ._native import UnchangedScript
from .step_hooks import StepHooks

_store: Any = None  # of rank 0, which serves it as torchrun's agent would
_stopped_by: str | None = None
_has_had_groups = False  # PyTorch forgets those that were destroyed


class _Stopped(BaseException):
    """Ends a script that was asked to stop, between two of its steps."""


def _set_variables(record: UnchangedScript) -> None:
    """What torchrun sets, for ``init_process_group()`` without arguments. What is set already stays."""
    global _store
    given = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    for name, value in (("RANK", record.rank), ("WORLD_SIZE", record.world_size), ("LOCAL_RANK", record.local_rank),
                        ("LOCAL_WORLD_SIZE", record.local_size)):
        os.environ.setdefault(name, str(value))
    if given:
        return
    place = ""
    if record.rank == 0:
        address = record.address
        _store = distributed.TCPStore(address, 0, None, is_master=True, wait_for_workers=False)
        place = f"{address} {_store.port}"
    address, port = record.from_rank_0("store", place).split()
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True")


def _backend_in_place_of(backend: Any) -> str | None:
    """The backend that takes its place; None: the one that the script has named stays.

    NCCL refuses what gloo can do with tensors on GPUs, several ranks on one of them, so these stay with gloo.
    """
    if backend is None:
        return "dtrain"
    name = str(backend).lower()
    if torch.cuda.is_available() and name in ("gloo", "nccl"):
        return "cpu:dtrain,cuda:gloo" if name == "gloo" else "cuda:dtrain"
    parts = []
    for part in name.split(","):
        device, colon, theirs = part.rpartition(":")
        ours = theirs in ("gloo", "nccl", "mpi") and (device, theirs) != ("cuda", "gloo")
        parts.append(f"{device}{colon}{'dtrain' if ours else theirs}")
    changed = ",".join(parts)
    return None if changed == name else changed


def _watch_process_groups(record: UnchangedScript) -> None:
    """``init_process_group()`` and ``new_group()`` make dtrain's groups, unless they are to keep their own."""
    torch_backend._autoload()  # an installed dtrain has done so
    told: set[str] = set()

    def with_our_backend(make: Any, position: int) -> Any:
        @functools.wraps(make)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            global _has_had_groups
            _has_had_groups = True
            given = list(arguments)
            backend = given[position] if len(given) > position else keywords.get("backend")
            if not record.exchanges or (backend is None and make.__name__ == "new_group"):  # that of the default group
                return make(*arguments, **keywords)
            ours = _backend_in_place_of(backend)
            if ours is not None:
                if record.rank == 0 and str(backend) not in told:
                    told.add(str(backend))
                    record.info(f"{make.__name__}(backend={backend!r}) makes a group of dtrain: --backend keep leaves it")
                if len(given) > position:
                    given[position] = ours
                else:
                    keywords["backend"] = ours
            return make(*given, **keywords)

        return wrapped

    for name, position in (("init_process_group", 0), ("new_group", 2)):
        ours = with_our_backend(getattr(distributed, name), position)
        for module in (distributed, distributed.distributed_c10d, distributed.device_mesh):  # the last one has imported the names
            setattr(module, name, ours)


def stop(reason: str) -> None:
    global _stopped_by
    _stopped_by = reason
    raise _Stopped(reason)


def end(record: UnchangedScript, error: str | None) -> int:
    """Ends the run of a script that has ended: by this error, or well. Returns the exit code."""
    if error is not None and _stopped_by is not None:
        error = f"it was stopped by {_stopped_by} after step {record.steps}; an unchanged script saves its own checkpoints"
    if error is not None:
        return record.fail("the script failed:\n" + error) or 1
    if record.steps == 0:
        record.warn("no step was found: the script has called no optimizer.step() after a backward()")
    return record.finish()


def _run(script: Path) -> str | None:
    """Runs the script. Returns the error that ended it; None: it has ended well."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leave:
        if leave.code in (None, 0):
            return None
        if not isinstance(leave.code, int):
            print(leave.code, file=sys.stderr)
        return f"it ended with sys.exit({leave.code!r})"
    except BaseException as error:
        return rank_module._without_ours(error)
    return None


def main() -> int:
    try:
        marker = len(sys.argv) - 1 - sys.argv[::-1].index("--")
    except ValueError:
        print("usage: python -m dtrain.as_is SCRIPT [ARGUMENTS] -- EXPERIMENT.yaml [OPTIONS]", file=sys.stderr)
        return 2
    script, own, rank_arguments = Path(sys.argv[1]), sys.argv[2:marker], sys.argv[marker + 1:]
    sys.path[0] = str(script.parent)
    sys.argv = [str(script), *own]
    state = torch.get_rng_state()
    record = UnchangedScript([str(script), *rank_arguments], faster=True)
    if not record.is_open:  # it has said why
        return record.exit_code
    torch.set_rng_state(state)
    _set_variables(record)
    _watch_process_groups(record)
    if not record.exchanges and record.world_size > 1 and record.rank == 0:
        record.info("--backend keep: the exchange of the script's process groups is not recorded apart from what it interrupts")
    torch_backend.observer = record.observer
    StepHooks(record, stop)
    error = _run(script)
    if error is None and record.world_size > 1 and not _has_had_groups:
        record.warn(f"the script has made no process group: each of the {record.world_size} ranks has trained by itself")
    return end(record, error)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the run has written everything; what Python would destroy now may still be the engine's
