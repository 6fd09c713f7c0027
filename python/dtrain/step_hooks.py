"""Finds the steps of a loop that is not dtrain's, by PyTorch's own hooks, and what happens in them.

A step is what lies between two updates of the parameters: it begins where the loader's next batch is asked for (without a
DataLoader: where the last step ended), and ends with the optimizer's ``step()``. Several backward passes before it are parts
of one step. Batches of an evaluation have no update, so they are no steps. In a loop with several optimizers the one that
steps last in a batch ends the steps; without a DataLoader, the one that has stepped first.

PyTorch's hooks see the optimizer. The rest has none, so three functions are wrapped: the iterator of ``DataLoader``,
``torch.autograd.backward`` (which ``Tensor.backward()`` calls), and ``GradScaler.step()``, which may leave the update out;
nothing in the modules: what is neither loading, nor backward, nor update counts as forward until the backward pass begins.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from ._native import UnchangedScript

_Phase = UnchangedScript.Phase
_MOST_OTHERS = 10  # updates of other optimizers, after which one that ended the steps does so no more
_MOST_PARTS = 8    # of a batch, in which samples are looked for


class StepHooks:
    """Installed for the life of the process. ``leave``: called between two steps with the cause for which the script has to end.

    Other threads than this one, processes that are forked off it, and what torch.compile() traces go by unseen.
    """

    def __init__(self, record: UnchangedScript, leave: Callable[[str], None]) -> None:
        self._record = record
        self._leave = leave
        self._thread = threading.get_ident()
        self._is_open = False
        self._has_gradients = False  # since the last update
        self._has_updates = False    # in the open step
        self._asks = 0               # for batches, in the open step
        self._has_asked = False      # in the step before
        self._iterator: int | None = None        # that was asked last
        self._first_iterator: int | None = None  # that was asked first in the open step: it has the samples
        self._is_exhausted = False
        self._is_loading = False
        self._updating: list[int] = []  # the optimizers within step(), the outermost first
        self._updates = 0
        self._others = 0                # updates since the last one of:
        self._last: int | None = None   # the optimizer whose updates end the steps
        self._samples = self._samples_of_batch = 0
        self._loss: float | None = None
        self._learning_rate = 0.0
        self._install()

    def _install(self) -> None:
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)
        os.register_at_fork(after_in_child=self._leave_out)
        hooks = self
        next_batch = dataloader._BaseDataLoaderIter.__next__
        backward = torch.autograd.backward
        scaled_step = GradScaler.step

        def next_with_times(iterator: Any) -> Any:
            if not hooks._sees() or hooks._is_loading or not torch.is_grad_enabled():
                return next_batch(iterator)
            hooks._before_batch(id(iterator))
            try:
                batch = next_batch(iterator)
            except StopIteration:
                hooks._is_exhausted = True
                raise
            finally:
                hooks._is_loading = False
                hooks._record.switch_to(_Phase.FORWARD)
            if hooks._first_iterator == id(iterator):
                hooks._samples_of_batch = samples_of(batch)
                hooks._samples += hooks._samples_of_batch
            return batch

        def backward_with_times(tensors: Any, *arguments: Any, **keywords: Any) -> None:
            if not hooks._sees():
                return backward(tensors, *arguments, **keywords)
            if not hooks._is_open:
                hooks._begin(_Phase.BACKWARD)
            before = hooks._record.switch_to(_Phase.BACKWARD)
            if before != _Phase.BACKWARD:
                hooks._note_loss(tensors)
            try:
                backward(tensors, *arguments, **keywords)
            finally:
                hooks._record.switch_to(before if before != _Phase.FORWARD else _Phase.OTHER)
            hooks._has_gradients = True

        def scaled_step_or_none(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            before = hooks._updates
            result = scaled_step(scaler, optimizer, *arguments, **keywords)
            if hooks._updates == before and hooks._sees():  # the gradients were not finite
                hooks._note_update(optimizer)
            return result

        dataloader._BaseDataLoaderIter.__next__ = next_with_times  # type: ignore[method-assign]
        torch.autograd.backward = backward_with_times
        GradScaler.step = scaled_step_or_none  # type: ignore[method-assign]

    def _sees(self) -> bool:
        return threading.get_ident() == self._thread and not torch.compiler.is_compiling()

    def _leave_out(self) -> None:
        """In a process that was forked off the rank."""
        self._thread = -1
        self._record.abandon()

    def _begin(self, phase: Any) -> None:
        self._record.begin_step(phase)
        self._is_open = True
        self._has_gradients = self._has_updates = False
        self._samples, self._loss, self._asks = 0, None, 0

    def _before_batch(self, iterator: int) -> None:
        if self._is_open and self._has_updates:  # of an optimizer that does not step last in other batches
            self._end()
        is_another_loader = self._asks > 0 and iterator != self._iterator and not self._is_exhausted
        if self._is_open and (self._has_gradients or is_another_loader):
            self._record.switch_to(_Phase.LOADER)
        else:
            self._begin(_Phase.LOADER)
        if self._asks == 0:
            self._first_iterator = iterator
        self._asks += 1
        self._iterator = iterator
        self._is_exhausted = False
        self._is_loading = True

    def _note_loss(self, tensors: Any) -> None:
        # Of a tensor on a device the host would have to wait, of a DTensor the other ranks.
        if type(tensors) is torch.Tensor and tensors.numel() == 1 and tensors.is_cpu and tensors.is_floating_point():
            self._loss = tensors.item()

    def _before_update(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        if not self._sees():
            return None
        if id(optimizer) in self._updating:  # its last step() has ended with an exception
            self._updating.clear()
        self._updating.append(id(optimizer))
        if len(self._updating) > 1:
            return None
        self._record.switch_to(_Phase.UPDATE)
        if callable(keywords.get("closure")):
            return arguments, {**keywords, "closure": self._within_update(keywords["closure"])}
        if len(arguments) > 1 and callable(arguments[1]):
            return (arguments[0], self._within_update(arguments[1]), *arguments[2:]), keywords
        return None

    def _within_update(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Computes the loss and its gradients, where an optimizer asks for them."""

        def closure_with_times() -> Any:
            self._record.switch_to(_Phase.FORWARD)
            try:
                return closure()
            finally:
                self._record.switch_to(_Phase.UPDATE)

        return closure_with_times

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if not self._sees():
            return
        self._updates += 1
        if id(optimizer) in self._updating:
            del self._updating[self._updating.index(id(optimizer)):]
        if not self._updating:
            self._note_update(optimizer)

    def _note_update(self, optimizer: Any) -> None:
        self._record.switch_to(_Phase.OTHER)
        if self._last is None:
            self._last = id(optimizer)
            self._describe(optimizer)
        is_last = id(optimizer) == self._last
        self._others = 0 if is_last else self._others + 1
        if not is_last and (self._others > _MOST_OTHERS or self._asks == 0 and self._has_asked):
            self._last = id(optimizer)  # it steps after the other, in the same batch
            is_last = self._asks > 0
            if not is_last:
                self._is_open = False
        if not self._is_open or not (self._has_gradients or self._has_updates):
            return
        self._has_gradients, self._has_updates = False, True
        learning_rate = optimizer.param_groups[0].get("lr", 0)
        if isinstance(learning_rate, (int, float)) or isinstance(learning_rate, torch.Tensor) and learning_rate.device.type == "cpu":
            self._learning_rate = float(learning_rate)
        if is_last:
            self._end()

    def _end(self) -> None:
        samples = self._samples or (self._samples_of_batch if self._asks > 0 else 0)
        self._has_asked = self._asks > 0
        self._is_open, self._asks = False, 0
        self._record.end_step(samples, self._loss, self._learning_rate)
        reason = self._record.stop_reason
        if reason:
            self._leave(reason)
        if not self._has_asked:
            self._begin(_Phase.FORWARD)

    def _describe(self, optimizer: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        types = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters}
        self._record.update_plan("model", {"parameters": sum(parameter.numel() for parameter in parameters),
                                           "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
                                           "tensors": len(parameters), **({"dtype": types.pop()} if len(types) == 1 else {})})
        self._record.update_plan("optimizer", {"kind": type(optimizer).__name__, "fused": bool(optimizer.defaults.get("fused"))})


def samples_of(batch: Any) -> int:
    """The length of the first tensor's first dimension; 0 where a batch has none. Iterators are left alone."""
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else 0
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, (tuple, list)):
        return 0
    for part in islice(batch, _MOST_PARTS):
        if count := samples_of(part):
            return count
    return 0
