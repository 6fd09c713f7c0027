"""torch.optim's optimizers in the engine's fused updates."""
from __future__ import annotations

from typing import Any

import torch

from ._native import ConfigError

# What the engine computes as torch.optim does, and under which word. By the class itself: a subclass may do more.
_KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw", torch.optim.RAdam: "radam",
          torch.optim.RMSprop: "rmsprop", torch.optim.Adagrad: "adagrad"}
# Settings that the engine has, and those that must have this value. Others only choose an implementation.
_SETTINGS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "eps", "alpha", "centered", "lr_decay")
_FIXED = {"amsgrad": False, "maximize": False, "initial_accumulator_value": 0, "differentiable": False}


def settings_of(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict[str, Any]]]:
    """The optimizer's kind, and the settings of each of its parameter groups.

    ConfigError for an optimizer, or a setting of one, that the engine does not compute.
    """
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        names = ", ".join(sorted(known.__name__ for known in _KINDS))
        raise ConfigError(f"{type(optimizer).__name__} is not one of the optimizers that dtrain can update with: {names}")
    if optimizer.state:
        raise ConfigError(f"the {type(optimizer).__name__} has taken steps, or has loaded a state, before it was wrapped: "
                          "wrap it first; a run goes on from its own checkpoints (--continue)")
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        for name, only in _FIXED.items():
            if group.get(name, only) != only:
                raise ConfigError(f"param_groups[{number}] of the {type(optimizer).__name__} has {name}={group[name]}, "
                                  f"which dtrain does not support: leave it {only}")
        decoupled = kind == "radam" and group.get("decoupled_weight_decay")
        if (kind == "adam" and group.get("decoupled_weight_decay")) or decoupled:
            if decoupled:
                raise ConfigError("RAdam with decoupled_weight_decay=True is not supported: leave it False")
        settings = {name: _number(group[name]) for name in _SETTINGS if name in group}
        if "betas" in group:
            settings["beta1"], settings["beta2"] = (_number(beta) for beta in group["betas"])
        groups.append(settings)
    if kind == "adam" and all(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
        kind = "adamw"
    return kind, groups


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


class SettingsWatch:
    """Notices that a scheduler changes more than the learning rate, which the engine would not see."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before = self._now()

    def _now(self) -> list[tuple[Any, ...]]:
        return [(len(group["params"]), *(group.get(name) for name in ("momentum", "betas", "weight_decay", "eps")))
                for group in self._optimizer.param_groups]

    def check(self) -> None:
        if self._now() != self._before:
            raise ConfigError("the optimizer's param_groups have changed in more than lr, which dtrain does not follow: "
                              "with OneCycleLR and CyclicLR pass cycle_momentum=False, and add no groups after wrap()")
