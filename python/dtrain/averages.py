"""Gradients that are averaged at each backward(), for optimizers of any kind and number that step by themselves: by the
engine (:class:`AveragedBackward`), or after the engine's training by one all-reduce (:class:`LaterBackward`)."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _native, optim

_State = _native.ScriptLoop.State


class _Entered:
    """While it is active, every Tensor.backward() comes here."""

    def __init__(self, loop: Any, context: Any) -> None:
        self._loop = loop
        self._context, self._world_size = context, context.world_size
        self._depth = 0
        self._samples, self._share = 0, 1.0
        self._done = self._batches = 0  # calls of backward() for this batch of the loader, and its batches so far

    @property
    def is_active(self) -> bool:
        return self._depth > 0

    def enter(self) -> None:
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1

    def leave_all(self) -> None:
        """After an error, which may have left out a leave()."""
        self._depth = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def begin_batch(self, samples: int, share: float) -> None:
        """What backward() is called for from now on: samples of this rank, and how much its loss counts."""
        self._samples, self._share = samples, share
        self.compare_calls()
        self._batches += 1
        self._done = 0

    def compare_calls(self) -> None:
        """RuntimeError if the ranks have not called backward() equally often for the batch that is over: one of a rank would be
        averaged with a later one of another, and their parameters would differ. Collective."""
        if self._batches == 0 or self._world_size == 1 or self._loop.state == _State.ENDED:
            return
        with self._explained():
            calls = [int(count) for count in self._context.all_gather(torch.tensor([self._done]))]
            if len(set(calls)) > 1:
                raise _native.Error(f"the ranks entered different operations: {' and '.join(map(str, calls))} calls")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except _native.Error as error:
            if "different operations" not in str(error):
                raise
            raise RuntimeError("every rank has to call backward() equally often for each batch of its loader, and this one has "
                               f"called it {self._done} times for batch {self._batches}: {error}") from None


class AveragedBackward(_Entered):
    """Each backward() is a batch of the engine's. When it returns, the mean of all ranks' gradients has been added to
    ``parameter.grad``, the same bits on every rank; what follows on the gradients (clipping, several optimizers, steps and
    zero_grad() in any order) is PyTorch's own, and the same on every rank.

    Parameters that no rank's loss depends on keep the ``grad`` that they have: their optimizer leaves them out.
    Every rank has to call backward() equally often for each batch of its loader: another one is an error.
    """

    def __init__(self, loop: Any, context: Any) -> None:
        super().__init__(loop, context)
        self._averaged = _native.AveragedGradients(context._native)
        self._names: dict[torch.nn.Parameter, str] = context._names
        self._buffers = context._buffers
        self._new: dict[torch.nn.Parameter, torch.Tensor] = {}  # of the batch that the engine has just averaged
        loop.after_update(self._take)

    def show_rate_of(self, optimizer: torch.optim.Optimizer) -> None:
        """metrics.jsonl has its learning rate."""
        self._averaged.show_rate(optim.rate_of(optimizer))

    def begin_batch(self, samples: int, share: float) -> None:
        super().begin_batch(samples, share)
        self._loop.open_batch(samples, -1)

    def backward(self, loss: torch.Tensor, retain_graph: bool) -> None:
        self._buffers.take()
        self._open()
        if self._loop.state == _State.ENDED:  # stopped, or failed: the session leaves
            return
        with optim.gradients_apart(self._names), self._explained():
            for parameter in self._names:
                parameter.grad = None  # within it the engine's
            self._loop.backward(loss, self._share, False, retain_graph)
            self._loop.update()
        with torch.no_grad():
            for parameter, new in self._new.items():
                parameter.grad = new.clone() if parameter.grad is None else parameter.grad.add_(new)
        self._new = {}
        self._done += 1

    def _open(self) -> None:
        """Begins the engine's batch before the forward pass, where that can be: its profile has the time of each phase."""
        if self._loop.state in (_State.UPDATED, _State.READY):
            self._loop.open_batch(self._samples, -1)

    def _take(self) -> None:
        if not self._averaged.take_updated():
            return
        gradients = self._averaged.gradients()
        # The engine leaves a gradient where that of any rank was used.
        self._new = {parameter: gradients[name] for parameter, name in self._names.items()
                     if name in gradients and parameter.grad is not None}


class LaterBackward(_Entered):
    """The same as :class:`AveragedBackward` for another training in a process, of any module, after the engine's own.

    The gradients of a backward() are exchanged in one all-reduce after it. The engine sees nothing of them.
    ``engines``: what the first training had, whose loop ends the run. ``wants_stop``: whether this rank is to stop; after
    the next backward() all ranks call ``stop`` together.
    """

    def __init__(self, loop: Any, context: Any, module: torch.nn.Module, engines: AveragedBackward | None,
                 wants_stop: Callable[[], bool], stop: Callable[[], None]) -> None:
        super().__init__(loop, context)
        self._module = module
        self.engines = engines
        self._wants_stop = wants_stop
        self._stop = stop
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.grad = None  # the engine's, of a module that it has trained
            with torch.no_grad():
                if context.world_size > 1 and tensor.numel() > 0:
                    tensor.copy_(self._broadcast(tensor))

    def backward(self, loss: torch.Tensor, retain_graph: bool) -> None:
        parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        # Not Tensor.backward(): it would call the engine's hooks of a module that the engine has trained.
        found = torch.autograd.grad(loss * self._share, parameters, retain_graph=retain_graph, allow_unused=True)
        with torch.no_grad(), self._explained():
            for parameter, new in zip(parameters, self._averaged(parameters, list(found))):
                if new is not None:
                    parameter.grad = new if parameter.grad is None else parameter.grad.add_(new)
        self._done += 1

    def _averaged(self, parameters: list[torch.nn.Parameter], found: list[Any]) -> list[Any]:
        """The means of all ranks; None for a parameter that no rank's loss depends on."""
        flags = torch.tensor([float(gradient is not None) for gradient in found] + [float(self._wants_stop())])
        flags = self._context.all_reduce(flags, "sum")
        if flags[-1] > 0:
            self._stop()
        used = [index for index in range(len(found)) if flags[index] > 0]
        for dtype in dict.fromkeys(parameters[index].dtype for index in used):  # the same order on every rank
            chosen = [index for index in used if parameters[index].dtype == dtype]
            mine = [torch.zeros_like(parameters[index]) if found[index] is None else found[index].to_dense()
                    if found[index].layout != torch.strided else found[index] for index in chosen]
            if self._context.world_size > 1:
                flat = self._context.all_reduce(torch.cat([gradient.reshape(-1) for gradient in mine]), "mean")
                mine = [part.view_as(gradient) for part, gradient in zip(flat.split([gradient.numel() for gradient in mine]), mine)]
            else:
                mine = [gradient.clone() for gradient in mine]  # autograd may give several parameters the same memory
            for index, new in zip(chosen, mine):
                found[index] = new
        return found

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        values = tensor.detach().contiguous().reshape(-1)
        return self._context.broadcast(values.view(torch.uint8), 0).view(values.dtype).view_as(tensor)


def check(optimizers: list[torch.optim.Optimizer], model: torch.nn.Module) -> None:
    """ConfigError for an optimizer that takes more than gradients from its rank, or has parameters that are not the model's."""
    optim.refuse_others(optimizers, model.parameters())
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise optim.no_lbfgs()
