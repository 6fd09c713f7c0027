"""What a script of torch.distributed may still have in it when it moves to dtrain, and what is said of it."""
from __future__ import annotations

import gc
import traceback

import torch
from torch.nn.parallel import DistributedDataParallel

from ._native import ConfigError

#: Modules that exchange gradients, or divide the model, themselves.
_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PAGE = "docs/python.md, \"Moving a DDP script\", has each line of such a script and what takes its place"


def refuse_parallel(model: torch.nn.Module) -> None:
    """ConfigError for a model within DistributedDataParallel and its kind: both would exchange gradients."""
    itself = getattr(model, "_orig_mod", model)
    for kind in type(itself).__mro__:
        if kind.__name__ in _PARALLEL and kind.__module__.startswith("torch."):
            raise ConfigError(f"session.wrap() was given a model within {kind.__name__}, and dtrain exchanges the gradients "
                              f"itself\n  pass the model without it, and compute with the model that wrap() returns; {_PAGE}")
    refuse_parallel_around(itself)


def refuse_parallel_around(model: torch.nn.Module | None) -> None:
    """ConfigError where a DistributedDataParallel that the script still has holds this model. Before the first batch: the
    search takes tens of milliseconds where the script has a process group, and nothing where it has none."""
    if model is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    itself = getattr(model, "_orig_mod", model)
    for candidate in gc.get_objects():
        if issubclass(type(candidate), DistributedDataParallel) and any(part is itself for part in candidate.modules()):
            raise ConfigError("the script has put the model of session.wrap() into DistributedDataParallel, which changes the "
                              "gradients a second time\n  leave DistributedDataParallel out, and compute with the model that "
                              f"wrap() returns; {_PAGE}")


def refuse_sharded(model: torch.nn.Module) -> None:
    """ConfigError for parameters and buffers that are no plain tensors in memory, such as the DTensors of fully_shard()."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        kind = next((base.__name__ for base in type(tensor).__mro__ if "__torch_dispatch__" in vars(base)
                     and base not in (torch.Tensor, torch.nn.Parameter)), None)
        if kind == "DTensor":
            raise ConfigError(f"'{name}' of the model is a DTensor, as fully_shard() and parallelize_module() make them, and dtrain "
                              "shards what it updates itself\n  pass the model without them; optimizations.sharded_optimizer and "
                              f"sharded_gradients are dtrain's; {_PAGE}")
        if kind is not None:
            raise ConfigError(f"'{name}' of the model is a {kind}, a tensor whose values are others': dtrain trains plain tensors\n"
                              "  replace it by one: torch.nn.Parameter(torch.Tensor(…)) with its values")


def advice(error: BaseException) -> str:
    """A line for an error of a script that asks for torch.distributed's process group or torchrun's variables; or nothing."""
    text = str(error)
    in_torch = any("/torch/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:])
    of_group = in_torch and ("process group" in text or "rendezvous" in text)
    of_variable = isinstance(error, KeyError) and bool(error.args) and error.args[0] in _VARIABLES
    if not of_group and not of_variable:
        return ""
    return ("\n  dtrain needs no process group of torch.distributed, and sets none up: session.rank, world_size, is_main, mean(), "
            f"all_reduce(), gather() and barrier() take its place; {_PAGE}")
