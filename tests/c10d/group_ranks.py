"""Ranks of a process group, as forks of a process that has imported torch: a case takes a fraction of a second.

The first argument of a program is the folder of the build's programs, from which the package is found. This process must not compute
with torch, because a fork would inherit threads that it does not have.
"""
import datetime
import faulthandler
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable

FORK = multiprocessing.get_context("fork")
TIMEOUT = datetime.timedelta(seconds=60)
LIMIT = 280.0  # seconds for a case: where other processes want the cores, each operation costs a rank a turn of all of them


def use_package() -> None:
    """Makes the package of the build importable. Takes the first argument away."""
    sys.path.insert(0, str(Path(sys.argv.pop(1)).resolve().parent / "python"))


use_package()

import torch  # noqa: E402  it registers the backend
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
torch.set_num_interop_threads(1)


class Ended:
    """How a rank has ended: with a result, an error, or by a signal."""

    def __init__(self, code: int, result: Any, error: str, seconds: float) -> None:
        self.code, self.result, self.error, self.seconds = code, result, error, seconds


class Place:
    """Where these ranks are among the world's, and the file by which all of them meet."""

    def __init__(self, first: int, world: int, store: str) -> None:
        self.first, self.world, self.store = first, world, store


def _rank(function: Callable[..., Any], arguments: tuple, rank: int, size: int, backend: str | None, place: Place, pipe: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(place.world), LOCAL_RANK=str(rank - place.first), LOCAL_WORLD_SIZE=str(size))
    faulthandler.dump_traceback_later(LIMIT - 10, exit=True)
    torch.manual_seed(rank)
    code, result, error = 0, None, ""
    try:
        if backend:
            dist.init_process_group(backend, init_method=f"file://{place.store}", rank=rank, world_size=place.world, timeout=TIMEOUT)
        result = function(rank, *arguments)
        if backend and dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        code, error = 1, traceback.format_exc()
    pipe.send_bytes(pickle.dumps((code, result, error)))
    sys.stdout.flush()
    sys.stderr.flush()
    if "dtrain._torch_distributed" in sys.modules:
        sys.modules["dtrain._torch_distributed"].announce_end(error.strip().rpartition("\n")[2])  # as at the end of a program
    os._exit(code)


def run_all(size: int, function: Callable[..., Any], *arguments: Any, backend: str | None = "dtrain", limit: float = LIMIT,
            dying: tuple[int, ...] = (), place: Place | None = None) -> list[Ended]:
    """Calls function(rank, *arguments) on each rank. How each has ended. The ranks `dying` give no result, and are killed when the others
    have ended. They are all of the world, unless `place` says otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        place = place or Place(0, size, f"{folder}/store")
        began = time.monotonic()
        ranks = []
        for rank in range(place.first, place.first + size):
            ours, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_rank, args=(function, arguments, rank, size, backend, place, theirs))
            process.start()
            theirs.close()
            ranks.append((process, ours))
        ended = []
        for rank, (_, pipe) in enumerate(ranks):
            if rank in dying:
                ended.append(Ended(-1, None, "it was to die", 0))
                continue
            try:
                left = max(0.0, limit - (time.monotonic() - began))
                code, result, error = pickle.loads(pipe.recv_bytes()) if pipe.poll(left) else (-1, None, "no end in time")
            except EOFError:
                code, result, error = -1, None, "the process has died"
            ended.append(Ended(code, result, error, time.monotonic() - began))
        for rank in dying:
            ranks[rank][0].kill()
        for process, _ in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        return ended


def run(size: int, function: Callable[..., Any], *arguments: Any, backend: str | None = "dtrain", limit: float = LIMIT) -> list[Any]:
    """The results of all ranks. AssertionError with the tracebacks of those that have failed."""
    ended = run_all(size, function, *arguments, backend=backend, limit=limit)
    errors = [f"rank {rank}: {one.error}" for rank, one in enumerate(ended) if one.code]
    if errors:
        raise AssertionError("\n".join(errors))
    return [one.result for one in ended]
