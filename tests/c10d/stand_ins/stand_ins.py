"""What stands in for a machine with GPUs where public scripts run, and writes down the losses that they do not print.

`import torch` calls install(), by an entry point that public_scripts.py makes, so the scripts are unchanged. Without effect unless
STAND_IN_LOSSES names a folder: there each rank writes a line for every backward(). STAND_IN_GPUS: CPUs pass for GPUs.
"""
import contextlib
import functools
import json
import os
import random
from typing import Any

import torch


def install() -> None:
    if "STAND_IN_LOSSES" not in os.environ:
        return
    random.seed(0)
    torch.manual_seed(0)
    _seed_numpy()
    _write_losses(os.environ["STAND_IN_LOSSES"])
    _name_backend()
    if "STAND_IN_GPUS" in os.environ:
        _pass_for_gpus()


def _seed_numpy() -> None:
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(0)


def _write_losses(folder: str) -> None:
    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def recorded(self: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        if self.numel() == 1 and "RANK" in os.environ:
            group = torch.distributed.is_available() and torch.distributed.is_initialized()
            line = {"loss": self.item(), "backend": torch.distributed.get_backend() if group else ""}
            with open(f"{folder}/rank-{os.environ['RANK']}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        return backward(self, *arguments, **keywords)

    torch.Tensor.backward = recorded


def _replace(owner: Any, name: str, **constants: Any) -> None:
    setattr(owner, name, lambda *_, **__: constants.get("value"))


def _name_backend() -> None:
    """Under torchrun nccl becomes gloo, or the backend under test."""
    import torch.distributed as dist

    wanted = os.environ.get("STAND_IN_BACKEND")
    make = dist.init_process_group
    if not wanted:
        return

    @functools.wraps(make)
    def wrapped(backend: str | None = None, *arguments: Any, **keywords: Any) -> Any:
        keywords.pop("device_id", None)
        return make(wanted, *arguments, **keywords)

    for module in (dist, dist.distributed_c10d, dist.device_mesh):
        module.init_process_group = wrapped


def _on_cpu(place: Any) -> Any:
    if isinstance(place, int) and not isinstance(place, bool) or str(place).startswith(("cuda", "cpu:")):
        return torch.device("cpu")
    return place


def _pass_for_gpus() -> None:
    from torch.nn.parallel import DistributedDataParallel

    def ranks(*_: Any) -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    accelerator = torch.accelerator
    _replace(accelerator, "is_available", value=True)
    _replace(accelerator, "current_accelerator", value=torch.device("cpu"))
    _replace(accelerator, "current_device_index", value=0)
    accelerator.device_count = torch.cuda.device_count = ranks
    accelerator.device_index = lambda *_: contextlib.nullcontext()
    for owner, name in ((accelerator, "set_device_index"), (torch.cuda, "set_device"), (torch.cuda, "empty_cache"),
                        (torch.optim.Optimizer, "_accelerator_graph_capture_health_check")):
        _replace(owner, name)
    for kind in (torch.Tensor, torch.nn.Module):
        to = kind.to

        def moved(self: Any, *arguments: Any, _to: Any = to, **keywords: Any) -> Any:
            keywords = {name: _on_cpu(value) if name == "device" else value for name, value in keywords.items()}
            return _to(self, *([_on_cpu(arguments[0]), *arguments[1:]] if arguments else []), **keywords)

        kind.to = moved
        kind.cuda = lambda self, *_, **__: self
    torch.Tensor.pin_memory = lambda self, *_: self
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def made(self: Any, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **keywords: Any) -> None:
        make(self, module, **keywords)

    DistributedDataParallel.__init__ = made
