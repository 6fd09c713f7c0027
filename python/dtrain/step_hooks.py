"""Finds the steps of a loop that is not dtrain's, by PyTorch's own hooks, and what happens in them.

A step is what lies between two updates of the parameters: it begins where the loader's next batch is asked for (without a
DataLoader: where the last step ended), and ends with the optimizer's ``step()``. Batches of an evaluation have no update, so
they are no steps. In a loop with several optimizers the first one that steps ends the steps.

PyTorch's hooks see the optimizer. The rest has none, so three functions are wrapped: the iterator of ``DataLoader``,
``torch.autograd.backward`` (which ``Tensor.backward()`` calls), and nothing in the modules: what is neither loading, nor
backward, nor update counts as forward until the backward pass begins.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from ._native import UnchangedScript

_Phase = UnchangedScript.Phase


class StepHooks:
    """Installed for the life of the process. ``leave``: called between two steps with the cause for which the script has to end."""

    def __init__(self, record: UnchangedScript, leave: Callable[[str], None]) -> None:
        self._record = record
        self._leave = leave
        self._is_open = False
        self._has_gradients = False  # since the last update
        self._has_loader = False
        self._optimizer: int | None = None  # the one whose updates end the steps
        self._samples = 0
        self._loss: float | None = None
        self._install()

    def _install(self) -> None:
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)
        hooks = self
        next_batch = dataloader._BaseDataLoaderIter.__next__
        backward = torch.autograd.backward

        def next_with_times(iterator: Any) -> Any:
            hooks._before_batch()
            try:
                batch = next_batch(iterator)
            finally:
                hooks._record.switch_to(_Phase.FORWARD)
            hooks._samples += samples_of(batch)
            return batch

        def backward_with_times(tensors: Any, *arguments: Any, **keywords: Any) -> None:
            hooks._note_loss(tensors)
            if not hooks._is_open:
                hooks._begin(_Phase.BACKWARD)
            before = hooks._record.switch_to(_Phase.BACKWARD)
            try:
                backward(tensors, *arguments, **keywords)
            finally:
                hooks._record.switch_to(before if before != _Phase.FORWARD else _Phase.OTHER)
            hooks._has_gradients = True

        dataloader._BaseDataLoaderIter.__next__ = next_with_times  # type: ignore[method-assign]
        torch.autograd.backward = backward_with_times

    def _begin(self, phase: Any) -> None:
        self._record.begin_step(phase)
        self._is_open = True
        self._samples, self._loss = 0, None

    def _before_batch(self) -> None:
        self._has_loader = True
        if self._has_gradients:  # another part of the same step
            self._record.switch_to(_Phase.LOADER)
        else:
            self._begin(_Phase.LOADER)

    def _note_loss(self, tensors: Any) -> None:
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and tensors.device.type == "cpu" and tensors.dtype.is_floating_point:
            self._loss = float(tensors.detach())

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        self._record.switch_to(_Phase.UPDATE)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._record.switch_to(_Phase.OTHER)
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            self._describe(optimizer)
        if not self._is_open or not self._has_gradients or id(optimizer) != self._optimizer:
            return
        self._record.end_step(self._samples, self._loss, float(optimizer.param_groups[0]["lr"]))
        self._is_open = self._has_gradients = False
        reason = self._record.stop_reason
        if reason:
            self._leave(reason)
        if not self._has_loader:
            self._begin(_Phase.FORWARD)

    def _describe(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._record.update_plan("model", {"parameters": sum(parameter.numel() for parameter in parameters),
                                           "tensors": len(parameters)})
        self._record.update_plan("optimizer", {"kind": type(optimizer).__name__, "fused": bool(optimizer.defaults.get("fused"))})


def samples_of(batch: Any) -> int:
    """The length of the first tensor's first dimension; 0 where a batch has none."""
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else 0
    if isinstance(batch, dict):
        batch = batch.values()
    if hasattr(batch, "__iter__") and not isinstance(batch, (str, bytes)):
        for part in batch:
            found = samples_of(part)
            if found:
                return found
    return 0

