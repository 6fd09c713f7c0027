"""Gradients that the engine averages at each backward(), for optimizers of any kind and number that step by themselves."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _native, optim

_State = _native.ScriptLoop.State


class AveragedBackward:
    """Each backward() is a batch of the engine's. When it returns, the mean of all ranks' gradients has been added to
    ``parameter.grad``, the same bits on every rank; what follows on the gradients (clipping, several optimizers, steps and
    zero_grad() in any order) is PyTorch's own, and the same on every rank.

    Parameters that no rank's loss depends on keep the ``grad`` that they have: their optimizer leaves them out.
    Every rank has to call backward() equally often for each batch of its loader: another one is an error.
    """

    def __init__(self, loop: Any, context: Any) -> None:
        self._loop = loop
        self._averaged = _native.AveragedGradients(context._native)
        self._context, self._world_size = context, context.world_size
        self._names: dict[torch.nn.Parameter, str] = context._names
        self._buffers = context._buffers
        self._new: dict[torch.nn.Parameter, torch.Tensor] = {}  # of the batch that the engine has just averaged
        self._samples, self._share = 0, 1.0
        self._done = self._expected = 0  # calls of backward() for this batch of the loader, and for the one before
        self._batches = 0  # of the loader
        self._depth = 0
        loop.after_update(self._take)

    def begin_batch(self, samples: int, share: float) -> None:
        """What backward() is called for from now on: samples of this rank, and how much its loss counts."""
        self._samples, self._share = samples, share
        self.compare_calls()
        self._batches += 1
        self._expected, self._done = self._done, 0
        self._open()

    def compare_calls(self) -> None:
        """RuntimeError if the ranks have not called backward() equally often for the batch that is over: one of a rank would be
        averaged with a later one of another, and their parameters would differ. Collective."""
        if self._batches == 0 or self._world_size == 1 or self._loop.state == _State.ENDED:
            return
        with self._explained():
            calls = [int(one) for one in self._context.all_gather(torch.tensor([self._done]))]
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

    def finish(self) -> None:
        """Ends a batch that was opened, and that no backward() came for."""
        with self._gradients_apart() as parameters:
            trainable = [p for p in parameters if p.requires_grad]
            nothing = sum((p.sum() for p in trainable), torch.zeros((), requires_grad=not trainable)) * 0
            self._loop.backward(nothing, 1.0, False, False)
            self._loop.end_step()
        self._new = {}

    @property
    def is_active(self) -> bool:
        return self._depth > 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it every Tensor.backward() comes here."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def backward(self, loss: torch.Tensor, gradient: Any, retain_graph: bool, create_graph: bool, inputs: Any) -> None:
        if create_graph or inputs is not None:
            raise _native.ConfigError("backward(create_graph=True) and backward(inputs=…) are not supported by dtrain: take "
                                      "gradients of gradients with torch.autograd.grad(create_graph=True), and add them to "
                                      "the loss")
        if gradient is not None:
            loss = (loss * gradient).sum()
        self._buffers.take()
        self._open()
        if self._loop.state == _State.ENDED:  # stopped, or failed: the session leaves
            return
        with self._gradients_apart(), self._explained():
            self._loop.backward(loss, self._share, False, retain_graph)
            self._loop.end_step()
        with torch.no_grad():
            for parameter, new in self._new.items():
                parameter.grad = new.clone() if parameter.grad is None else parameter.grad.add_(new)
        self._new = {}
        self._done += 1
        if self._done < self._expected:
            self._open()

    def _open(self) -> None:
        """Begins the engine's batch before the forward pass, where that can be: its profile has the time of each phase."""
        if self._loop.state in (_State.UPDATED, _State.WANTS_BATCH):
            with self._gradients_apart():
                self._loop.give_batch(self._samples)

    @contextmanager
    def _gradients_apart(self) -> Iterator[list[torch.nn.Parameter]]:
        """Within it ``parameter.grad`` is the engine's, afterwards that of the optimizers again."""
        parameters = list(self._names)
        before = [parameter.grad for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.grad = None
            yield parameters
        finally:
            for parameter, gradient in zip(parameters, before):
                parameter.grad = gradient

    def _take(self) -> None:
        if not self._averaged.take_updated():
            return
        gradients = self._averaged.gradients()
        # The engine leaves a gradient where that of any rank was used.
        self._new = {parameter: gradients[name] for parameter, name in self._names.items()
                     if name in gradients and parameter.grad is not None}


def check(optimizers: list[torch.optim.Optimizer]) -> None:
    """ConfigError for an optimizer that takes more than gradients from its rank."""
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise optim.no_lbfgs()
