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
        dist.Backend.register_backend("dtrain", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, given: Any) -> object:
    """Makes what a process group has of dtrain: for tensors on the CPU, on GPUs, or for both. ``given``: the program's ``pg_options``."""
    from . import _find_native

    _find_native(str(torch.__version__))
    from . import _torch_distributed as native

    libraries = [os.path.dirname(file) + os.sep for file in (torch.__file__, __file__)]
    native.skip_source_lines_of([*libraries, contextlib.__file__])
    has_gpus = torch.cuda.is_available()
    if not has_gpus:  # the variable is for NCCL's groups, too
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # DDP takes its buckets from the backend, which then copies nothing
    if os.getpid() not in _begun_in:
        _begun_in.add(os.getpid())
        _begin(native, options)
    devices = _devices_of(sys._getframe(1).f_locals.get("backend_config"))
    if "cuda" not in devices or not has_gpus:
        return native.create(options)
    parent = getattr(options, "split_from", None)
    if parent is not None:  # the communicator of NCCL is split off its own
        options.split_from = parent.device if isinstance(parent, native.DeviceBackend) else None
    if "cpu" in devices:
        return native.create_for_devices(options, native.create(options), None, make_nccl, given)
    return native.create_for_devices(options, None, make_nccl(options, given), make_nccl, given)


def _devices_of(config: Any) -> list[str]:
    """The devices whose tensors a group of this configuration hands to dtrain. PyTorch does not tell a backend, which may
    stand for several, so ``config`` is a variable of its function."""
    devices = [device for device, name in config.get_device_backend_map().items() if name == "dtrain"] if config is not None else []
    return devices or ["cpu", "cuda"]


def make_nccl(options: Any, given: Any, device: torch.device | None = None, is_bound: bool = True) -> object:
    """PyTorch's group of NCCL, as ``init_process_group("nccl")`` makes it.

    With a device it is made for the first tensor there. Unless the program has bound its group to the device, messages then
    must not need the ranks that take no part in them.
    """
    if not dist.is_nccl_available():
        raise RuntimeError("dtrain: tensors on GPUs are exchanged by NCCL, which this PyTorch does not have")
    backend = dist.Backend
    if not hasattr(backend, "_ensure_backend_registered"):  # before NCCL was a backend among others
        return _make_nccl_of_before(options, given)
    name = "nccl"
    backend._ensure_backend_registered(name)
    if device is not None:
        holder = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        holder.bound_device_id = device
        options.process_group = holder
        has_lazy = hasattr(dist.ProcessGroupNCCL.Options, "lazy_init")
        if not is_bound and has_lazy and backend._plugins["NCCL"].creator_fn.__name__ == "_create_nccl2_process_group":
            name = "nccl-lazy"
            backend._ensure_backend_registered(name)
            given = given if given is not None else dist.ProcessGroupNCCL.Options()
            given.lazy_init = True
    return backend._plugins[name.upper()].creator_fn(options, given)


def _make_nccl_of_before(options: Any, given: Any) -> object:
    c10d = dist.distributed_c10d
    given = given if given is not None else dist.ProcessGroupNCCL.Options()
    given._timeout = options.timeout
    parent = getattr(options, "split_from", None)
    if parent is not None:
        given.split_from = parent
        given.split_color = c10d._process_group_color(options.global_ranks_in_group)
    given.global_ranks_in_group = options.global_ranks_in_group
    given.group_name = options.group_id
    return dist.ProcessGroupNCCL(options.store, options.group_rank, options.group_size, given)


_begun_in: set[int] = set()  # the processes that have had a group


def _begin(native: Any, options: Any) -> None:
    from . import fsdp_memory, torchrun

    fsdp_memory.take()
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
