"""The backend ``dtrain`` of torch.distributed: ``dist.init_process_group("dtrain")``. docs/torch-distributed.md describes it.

``import torch`` calls :func:`_autoload` by the entry point of the group ``torch.backends``, so no script has to import anything. What is
native is loaded when the first process group is made.
"""
import atexit
import contextlib
import functools
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

#: Of the run that records this process (as_is.py, torchrun.py); None: nobody does.
observer: Any = None


def _autoload() -> None:
    """Registers the backend, if that has not happened."""
    if dist.is_available() and "dtrain" not in dist.Backend.backend_list:
        dist.Backend.register_backend("dtrain", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: object) -> object:
    """Makes the part of a process group that is for tensors on the CPU."""
    from . import _find_native

    _find_native(str(torch.__version__))
    from . import _torch_distributed

    libraries = [os.path.dirname(file) + os.sep for file in (torch.__file__, __file__)]
    _torch_distributed.skip_source_lines_of([*libraries, contextlib.__file__])
    if not torch.cuda.is_available():  # the variable is for NCCL's groups, too
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # DDP takes its buckets from the backend, which then copies nothing
    if os.getpid() not in _begun_in:
        _begun_in.add(os.getpid())
        _begin(_torch_distributed, options)
    return _torch_distributed.create(options)


_begun_in: set[int] = set()  # the processes that have had a group


def _begin(native: Any, options: Any) -> None:
    from . import torchrun

    announce = functools.partial(_announce_end, native, os.getpid())
    atexit.register(announce)  # called after the end of the run, whose cause comes first
    seen = observer
    if seen is None and torchrun.is_to_be_recorded(options.group_rank, options.group_size):
        seen = torchrun.begin(announce)
    if seen is not None:
        native.observe(seen)


def _announce_end(native: object, pid: int) -> None:
    """The other ranks learn that this one has ended, and by which exception."""
    if os.getpid() != pid:  # a fork of the rank
        return
    error = getattr(sys, "last_value", None)
    native.announce_end(f"{type(error).__name__}: {error}" if error is not None else "")
