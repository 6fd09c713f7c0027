"""The backend ``dtrain`` of torch.distributed: ``dist.init_process_group("dtrain")``. docs/torch-distributed.md describes it.

``import torch`` calls :func:`_autoload` by the entry point of the group ``torch.backends``, so no script has to import anything. What is
native is loaded when the first process group is made.
"""
import atexit
import os
import sys

import torch
import torch.distributed as dist


def _autoload() -> None:
    """Registers the backend, if that has not happened."""
    if dist.is_available() and "dtrain" not in dist.Backend.backend_list:
        dist.Backend.register_backend("dtrain", _create, extended_api=True, devices=["cpu"])


def _create(options: object, _: object) -> object:
    """Makes the part of a process group that is for tensors on the CPU."""
    from . import _find_native

    _find_native(str(torch.__version__))
    from . import _torch_distributed

    if not torch.cuda.is_available():  # the variable is for NCCL's groups, too
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # DDP takes its buckets from the backend, which then copies nothing
    _at_exit_once(_torch_distributed)
    return _torch_distributed.create(options)


_exit_of: set[int] = set()  # the processes that announce their end


def _at_exit_once(native: object) -> None:
    if os.getpid() not in _exit_of:
        _exit_of.add(os.getpid())
        atexit.register(_announce_end, native, os.getpid())


def _announce_end(native: object, pid: int) -> None:
    """The other ranks learn that this one has ended, and by which exception."""
    if os.getpid() != pid:  # a fork of the rank
        return
    error = getattr(sys, "last_value", None)
    native.announce_end(f"{type(error).__name__}: {error}" if error is not None else "")
