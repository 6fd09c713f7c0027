"""torch.optim's optimizers in the engine's fused updates."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from ._native import AveragedGradients, ConfigError

# What the engine computes as torch.optim does, and under which word. By the class itself: a subclass may do more.
_KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw", torch.optim.RAdam: "radam",
          torch.optim.RMSprop: "rmsprop", torch.optim.Adagrad: "adagrad"}
# Settings that the engine has, and those that must have this value. Others only choose an implementation.
_SETTINGS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "eps", "alpha", "centered", "lr_decay")
_FIXED = {"amsgrad": False, "capturable": False, "maximize": False, "initial_accumulator_value": 0, "differentiable": False}
# AdamW is a subclass of Adam with decoupled_weight_decay.
_DECOUPLED = {"adam": False, "radam": False}


#: The engine's names of what it remembers of a parameter, and torch.optim's where they differ.
_STATE_NAMES = {"momentum": "momentum_buffer"}
#: Optimizers whose state counts steps.
_COUNTS_STEPS = ("adam", "adamw", "radam", "rmsprop", "adagrad")


def is_computed(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the engine computes the updates of this optimizer with its settings; others step by themselves."""
    kind = _KINDS.get(type(optimizer))
    decoupled = _DECOUPLED.get(kind or "")
    return kind is not None and all(
        all(group.get(name, only) == only for name, only in _FIXED.items())
        and (decoupled is None or group.get("decoupled_weight_decay", decoupled) == decoupled)
        for group in optimizer.param_groups)


def settings_of(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict[str, Any]]]:
    """The kind of an optimizer that the engine computes, and the settings of each of its parameter groups."""
    kind = _KINDS[type(optimizer)]
    groups = []
    for group in optimizer.param_groups:
        settings = {name: plain_number(group[name]) for name in _SETTINGS if name in group}
        if "betas" in group:
            settings["betas"] = tuple(plain_number(beta) for beta in group["betas"])
        groups.append(settings)
    return kind, groups


def plain_number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def set_rate(group: dict[str, Any], rate: Any) -> None:
    """The learning rate of a parameter group, which is a number or a tensor that stays the same one."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(plain_number(rate))
    else:
        group["lr"] = rate


def rate_of(optimizer: torch.optim.Optimizer) -> Callable[[], float]:
    """The learning rate of the first group that is trained, whenever it is called. load_state_dict() makes new groups."""
    shown = next((index for index, group in enumerate(optimizer.param_groups)
                  if any(parameter.requires_grad for parameter in group["params"])), 0)
    return lambda: float(plain_number(optimizer.param_groups[shown].get("lr", 0.0)))


class SettingsWatch:
    """Notices that a scheduler changes more than the learning rate, which the engine would not see."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before = self._now()

    def _now(self) -> list[tuple[Any, ...]]:
        names = [name for name in (*_SETTINGS, *_FIXED, "betas", "decoupled_weight_decay") if name != "lr"]
        return [(len(group["params"]), *(group.get(name) for name in names)) for group in self._optimizer.param_groups]

    def check(self) -> None:
        if self._now() != self._before:
            raise ConfigError("the optimizer's param_groups have changed in more than lr, which dtrain does not follow: "
                              "with OneCycleLR and CyclicLR pass cycle_momentum=False, and add no groups after wrap()")


def names_of(model: torch.nn.Module) -> dict[torch.nn.Parameter, str]:
    """The engine's names of the parameters: of tied ones the first."""
    return {parameter: name for name, parameter in model.named_parameters()}


def beside(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Module]:
    """The trainable parameters of an optimizer that are not the model's, such as those of a loss: by the names of modules
    in which they are trained with it."""
    known, modules = set(model.parameters()), {}
    for index, group in enumerate(optimizer.param_groups):
        others = {str(number): parameter for number, parameter in enumerate(group["params"])
                  if parameter.requires_grad and parameter not in known}
        if others:
            module = modules[f"param_groups[{index}]"] = torch.nn.Module()
            module._parameters.update(others)
    return modules


def refuse_others(optimizers: list[torch.optim.Optimizer], parameters: Any) -> None:
    """ConfigError for an optimizer with trainable parameters that are not among these: nobody would exchange their
    gradients."""
    known = set(parameters)
    for optimizer in optimizers:
        for index, group in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in known:
                    raise ConfigError(
                        f"{type(optimizer).__name__}.param_groups[{index}]['params'][{number}] {list(parameter.shape)} is no parameter "
                        "of the model that dtrain was given, and so would not be trained\n  make what it belongs to, such as a "
                        "loss, a part of that model: self.loss = loss in its constructor")


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
                or torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks)


def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Calls the hooks of register_step_pre_hook(), and those of all optimizers. Returns step()'s arguments, which they may
    change; the optimizer is the first."""
    for hook in chain(torch_optimizer._global_optimizer_pre_hooks.values(), optimizer._optimizer_step_pre_hooks.values()):
        changed = hook(optimizer, args, kwargs)
        if changed is not None and not (isinstance(changed, tuple) and len(changed) == 2):
            raise RuntimeError(f"a hook of register_step_pre_hook() has to return None or (args, kwargs), and has returned "
                               f"{changed!r}")
        args, kwargs = changed or (args, kwargs)
    return args, kwargs


def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Calls the hooks of register_step_post_hook(), and those of all optimizers."""
    for hook in chain(optimizer._optimizer_step_post_hooks.values(), torch_optimizer._global_optimizer_post_hooks.values()):
        hook(optimizer, args, kwargs)


def with_hooks(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    """A step() of the engine's between the optimizer's hooks."""

    def hooked(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = before_step(optimizer, (optimizer, *args), kwargs)
        result = step(*args[1:], **kwargs)
        after_step(optimizer, args, kwargs)
        return result

    return hooked


def state_dict(optimizer: torch.optim.Optimizer, names: dict[torch.nn.Parameter, str],
               state: dict[str, tuple[int, dict[str, torch.Tensor]]]) -> dict[str, Any]:
    """torch.optim's state_dict() of what the engine remembers of each parameter."""
    counts = _KINDS[type(optimizer)] in _COUNTS_STEPS
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                updates, tensors = state.get(names.get(parameter, ""), (0, {}))
                if updates == 0:
                    continue
                values = {_STATE_NAMES.get(name, name): tensor for name, tensor in tensors.items()}
                optimizer.state[parameter] = {"step": torch.tensor(float(updates)), **values} if counts else values
        return type(optimizer).state_dict(optimizer)
    finally:
        optimizer.state.clear()


def take_state(optimizer: torch.optim.Optimizer,
               names: dict[torch.nn.Parameter, str]) -> dict[str, tuple[int, dict[str, torch.Tensor]]]:
    """What the optimizer remembers, for the engine; the optimizer itself forgets it."""
    engines = {theirs: ours for ours, theirs in _STATE_NAMES.items()}
    if isinstance(optimizer, torch.optim.RMSprop):
        engines = {}
    state = {}
    for parameter, values in optimizer.state.items():
        tensors = {engines.get(name, name): value for name, value in values.items() if name != "step"
                   and isinstance(value, torch.Tensor)}
        # SGD does not count its steps: only the first differs from the others.
        state[names[parameter]] = (int(values.get("step", 1)), tensors)
    optimizer.state.clear()
    return state


def load_state_dict(optimizer: torch.optim.Optimizer, values: dict[str, Any]) -> None:
    """torch.optim's load_state_dict(), after which the parameter groups are the same objects as before: the engine reads
    learning rates from them. Its settings must be those that the engine has been given."""
    watch = SettingsWatch(optimizer)
    groups = optimizer.param_groups
    type(optimizer).load_state_dict(optimizer, values)
    for group, loaded in zip(groups, optimizer.param_groups):
        group.clear()
        group.update(loaded)
    optimizer.param_groups = groups
    watch.check()


def load_own_state(optimizer: torch.optim.Optimizer, values: dict[str, Any]) -> None:
    """load_state_dict() of what an optimizer that steps by itself has saved. Its tensors keep their types and strides, which
    PyTorch's would make those of the parameters: it goes on with the same bits."""
    type(optimizer).load_state_dict(optimizer, values)
    saved = values.get("state")
    if not isinstance(saved, dict) or "param_groups" not in values:
        return
    numbers = [number for group in values["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters):
        state = optimizer.state.get(parameter, {})
        for name, value in saved.get(number, {}).items():
            loaded = state.get(name)
            if isinstance(loaded, torch.Tensor) and isinstance(value, torch.Tensor) and loaded.shape == value.shape:
                state[name] = value.to(loaded.device)


def kinds_of(objects: list[Any]) -> list[str]:
    """The names of their classes, beside whose state they are kept in checkpoints."""
    return [type(item).__name__ for item in objects]


def no_state_of(optimizers: list[torch.optim.Optimizer]) -> ConfigError:
    """The error of a run that begins with a checkpoint without what these optimizers remember, which only Python knows."""
    return ConfigError(f"the checkpoint does not have the state of {', '.join(kinds_of(optimizers))}, which dtrain does not "
                       "compute itself: begin with its weights alone (initial_weights without training_state), or with "
                       "SGD, Adam, AdamW, RAdam, RMSprop or Adagrad on both sides")


def no_lbfgs() -> ConfigError:
    return ConfigError("LBFGS evaluates its closure several times in a step, which is not supported")


def other_schedulers(schedulers: list[Any], state: dict[str, Any]) -> str:
    """What is different where a checkpoint has the state of other schedulers than these; empty where it has theirs."""
    kinds = kinds_of(schedulers)
    # Checkpoints of earlier versions have no names.
    before = state.get("scheduler_kinds", kinds if len(state["schedulers"]) == len(kinds) else
                       [f"{len(state['schedulers'])} schedulers"])
    if before == kinds:
        return ""
    return (f"the checkpoint has the state of {', '.join(before) or 'no scheduler'}, and this run has "
            f"{', '.join(kinds) or 'no scheduler'}")


@contextmanager
def gradients_apart(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Afterwards ``parameter.grad`` is what it was before."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


class OwnSteps:
    """An optimizer that the engine does not compute: it steps by itself, on averaged gradients, on every rank alike."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[torch.nn.Parameter, str], native: Any) -> None:
        self._optimizer = optimizer
        self._step = optimizer.step
        self._names = names
        self._averaged = AveragedGradients(native)
        self._averaged.show_rate(rate_of(optimizer))

    def after_batch(self) -> None:
        """To be called when the engine has updated."""
        if not self._averaged.take_updated():
            return
        gradients = self._averaged.gradients()
        # The engine leaves a gradient where that of any rank was used. Optimizers leave out parameters without one.
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]
                      if self._names.get(p) in gradients and p.grad is not None]
        with gradients_apart(parameters):
            for parameter in parameters:
                parameter.grad = gradients[self._names[parameter]]
            self._step()
