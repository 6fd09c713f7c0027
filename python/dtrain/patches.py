"""What is put in the place of PyTorch's own functions while a session trains. Nothing else in the package replaces any.

- ``torch.autograd.backward``, which ``Tensor.backward()`` calls: a loss of the session's model goes to the engine.
- ``step``, ``zero_grad``, ``state_dict`` and ``load_state_dict`` of an optimizer that the engine has taken over, as attributes of
  that object.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_autograd_backward = torch.autograd.backward
#: Gets (losses, their gradients or None, retain_graph, create_graph, inputs), and returns whether it has made the gradients.
_taker: Callable[..., bool] | None = None
_is_inside = False  # the engine's backward: what functions of the graph call in it is PyTorch's


def take_backward(taker: Callable[..., bool] | None) -> None:
    """``taker`` gets each backward from now on. None: PyTorch's own."""
    global _taker
    _taker = taker
    torch.autograd.backward = _autograd_backward if taker is None else _backward


def _backward(tensors: torch.Tensor | Sequence[torch.Tensor], grad_tensors: Any = None, retain_graph: bool | None = None,
              create_graph: bool = False, grad_variables: Any = None, inputs: Any = None) -> None:
    global _is_inside
    if _taker is not None and not _is_inside and grad_variables is None:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) or grad_tensors is None else list(grad_tensors)
        given += [None] * (len(losses) - len(given))
        _is_inside = True
        try:
            if _taker(losses, given, bool(retain_graph), create_graph, inputs):
                return
        finally:
            _is_inside = False
    _autograd_backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)


def take_optimizer(optimizer: torch.optim.Optimizer, **methods: Callable[..., Any]) -> None:
    """Replaces these methods of the object."""
    for name, method in methods.items():
        if name == "step":
            method._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # PyTorch's schedulers look for it
            optimizer._opt_called = True  # type: ignore[attr-defined]
        setattr(optimizer, name, method)
    optimizer._taken_by_dtrain = tuple(methods)  # type: ignore[attr-defined]


def give_back(optimizer: torch.optim.Optimizer) -> bool:
    """The object has PyTorch's methods again. Returns whether its state was the engine's."""
    taken: tuple[str, ...] = vars(optimizer).pop("_taken_by_dtrain", ())
    for name in taken:
        delattr(optimizer, name)
    return "state_dict" in taken
