"""FSDP2 takes the memory of its collectives from the process group, as ``set_allocate_memory_from_process_group_for_comm(True)`` asks.

dtrain's groups then copy nothing. Scripts need no line for that, and one that gives ``False`` gets PyTorch's memory.
"""
from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


def take() -> None:
    """From now on. The module is loaded when a script needs it, because that takes half a second."""
    if _is_taken():
        return
    if _MODULE in sys.modules:
        _change(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


def _is_taken() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path) or hasattr(sys.modules.get(_MODULE), "_changed_by_dtrain")


class _Finder(MetaPathFinder):
    """Changes the module once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                _change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def _change(module: Any) -> None:
    module._changed_by_dtrain = True
    of_group = module.FSDPParamGroup
    if not hasattr(of_group, "set_allocate_memory_from_process_group"):  # an older PyTorch
        return
    begin = of_group.__init__

    @functools.wraps(begin)
    def begin_with_memory(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)
        if self.device.type == "cpu" and isinstance(self.mesh_info, module.FSDPMeshInfo) and _is_ours(self._all_gather_process_group):
            self.set_allocate_memory_from_process_group(True)

    of_group.__init__ = begin_with_memory


def _is_ours(group: torch.distributed.ProcessGroup) -> bool:
    return group._get_backend(torch.device("cpu")).name() == "dtrain"
