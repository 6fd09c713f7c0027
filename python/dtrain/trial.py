"""Training whose loop is dtrain's: a class with a method for each batch."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch

from . import _native, moving, optim, patches, sample_division
from .data import DataSet, Loader, _given
from .sample_division import Source
from .seeds import drawn_alike, seed_python

M = TypeVar("M", bound=torch.nn.Module)


class Metric(tuple):
    """A metric's value where it is no plain mean over samples.

    ``reduction``: how the values of all batches and ranks become one: mean, sum, min or max. ``weight``: the number of
    items that the value is the mean of, such as the tokens that count; None: the batch's samples.
    """

    def __new__(cls, value: float | torch.Tensor, reduction: str = "mean", weight: float | None = None) -> Metric:
        return super().__new__(cls, (value, reduction, weight))


class _Section(Mapping):
    """A section of the experiment. Keys that are read count as used: a warning names the others."""

    def __init__(self, names: Callable[[], list[str]], value: Callable[[str], Any]) -> None:
        self._names = names
        self._value = value

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return self._value(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


class _Buffers:
    """The buffers that the engine saves. `module.ema = 0.9 * module.ema + …` puts another tensor in a buffer's place: its
    values are copied into the one that the engine knows."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def add(self, model: torch.nn.Module) -> None:
        for module in model.modules():
            self._kept += [(module, name, buffer) for name, buffer in module._buffers.items() if buffer is not None]

    def take(self) -> None:
        """After a forward pass."""
        for module, name, kept in self._kept:
            value = module._buffers.get(name)
            if value is kept or value is None:
                continue
            if value.shape != kept.shape or value.dtype != kept.dtype:
                raise _native.ConfigError(
                    f"{type(module).__name__}.{name} was {kept.dtype} {list(kept.shape)} when dtrain took the model, and "
                    f"becomes {value.dtype} {list(value.shape)}: a buffer keeps its type and shape")
            with torch.no_grad():
                module._buffers[name] = kept.copy_(value)


class Context:
    """Facts about the run, and what a trial does with its model: the first argument of a trial's constructor."""

    def __init__(self, native: Any) -> None:
        self._of_engine = native
        seed_python(self._native.seed)  # as the engine has seeded torch: equal on all ranks
        self._watches: list[optim.SettingsWatch] = []
        self._schedulers: list[tuple[Any, str]] = []
        self._names: dict[torch.nn.Parameter, str] = {}
        self._models: list[torch.nn.Module] = []  # that the trial has wrapped
        self._buffers = _Buffers()
        self._own_steps: list[tuple[torch.optim.Optimizer, optim.OwnSteps]] = []
        self._computed: list[torch.optim.Optimizer] = []  # by the engine
        self._of_models: list[torch.optim.Optimizer] = []  # by the engine, each for one of several models
        self._has_begun = False  # a trial's training
        self._lowers_rates = False  # reduce_lr_on_plateau() was called
        #: The experiment's hyperparameters.
        self.hyperparameters: Mapping[str, Any] = _Section(
            lambda: self._native.hyperparameter_names(), lambda name: self._native.hyperparameter(name))
        #: The experiment's ``data`` section.
        self.data: Mapping[str, Any] = _Section(lambda: self._native.data_names(), lambda name: self._native.data_value(name))

    @property
    def _native(self) -> Any:
        return self._of_engine

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def world_size(self) -> int:
        return self._native.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def batch_size(self) -> int:
        """Samples of this rank in a batch: global_batch_size / slots_per_trial."""
        return self._native.batch_size

    @property
    def global_batch_size(self) -> int:
        return self._native.global_batch_size

    @property
    def device(self) -> torch.device:
        return torch.device(self._native.device)

    @property
    def run_dir(self) -> Path:
        return Path(self._native.run_dir)

    def resolve(self, path: str | os.PathLike[str]) -> Path:
        """A path of the experiment file, relative to that file's folder."""
        return Path(self._native.resolve(os.fspath(path)))

    def wrap_model(self, model: M, name: str = "") -> M:
        """Takes the model, moves it to ``device`` and returns it. ``name``: of one of several models.

        A model that ``torch.compile()`` has returned stays compiled; its parameters have the names of the model itself, and
        ``optimizations.memory_format: auto`` leaves them as they are.
        """
        return self._wrap_model(model, name, {})

    def _wrap_model(self, model: M, name: str, beside: dict[str, torch.nn.Module]) -> M:
        """`beside`: by name what is trained with the model, and is no part of its weights."""
        itself: torch.nn.Module = getattr(model, "_orig_mod", model)
        moving.refuse_sharded(itself)
        if itself is not model and self._native.logical_ranks:
            raise _native.ConfigError("torch.compile() is not supported with reproducibility.virtual_ranks: which code it makes depends on "
                                      "the sizes that a process has seen; leave one of both out")
        self._native.wrap_model(itself, name, itself is not model, beside)
        self._buffers.add(itself)
        self._models.append(model)
        for parameter, own in optim.names_of(itself).items():
            self._names.setdefault(parameter, f"{name}.{own}" if name else own)
        for group, module in beside.items():
            self._names.update({parameter: f"{group}.{number}" for number, parameter in module._parameters.items()})
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: str = "") -> torch.optim.Optimizer:
        """Takes over an optimizer of torch.optim: its settings and groups; learning rates are read before each step.

        SGD, Adam, AdamW, RAdam, RMSprop and Adagrad are computed by the engine. Every other optimizer steps by itself, on
        averaged gradients and on every rank alike. ``model``: the name of one of several models. A parameter group with a
        key ``max_gradient_norm`` or ``max_gradient_value`` is clipped by itself.
        """
        if not optim.is_computed(optimizer):
            for limit in ("max_gradient_norm", "max_gradient_value"):
                if any(group.get(limit) is not None for group in optimizer.param_groups):
                    raise _native.ConfigError(f"a parameter group of {type(optimizer).__name__} has {limit}, which "
                                              "dtrain obeys with SGD, Adam, AdamW, RAdam, RMSprop and Adagrad alone: clip all "
                                              "gradients with clip_gradient_norm")
            if model:
                raise _native.ConfigError(f"{type(optimizer).__name__} for one of several models is not supported: dtrain "
                                          "updates several models itself, with SGD, Adam, AdamW, RAdam, RMSprop, Adagrad")
            self._own_steps.append((optimizer, optim.OwnSteps(optimizer, self._names, self._native)))
            return optimizer
        if model and optimizer.state:
            raise _native.ConfigError("an optimizer of one of several models has a state already, which is not supported: "
                                      "wrap it as it was made")
        kind, settings = optim.settings_of(optimizer)
        self._native.wrap_optimizer(model, kind, optimizer.param_groups, settings)
        self._watches.append(optim.SettingsWatch(optimizer))
        if model:
            self._of_models.append(optimizer)
        else:
            self._give_methods(optimizer)
        return optimizer

    def _give_methods(self, optimizer: torch.optim.Optimizer) -> None:
        """Those of torch.optim, on the state that the engine has once training begins."""
        self._computed.append(optimizer)

        def state_dict() -> Any:
            """Collective: every rank has to call it, between two batches."""
            if not self._has_begun:
                return type(optimizer).state_dict(optimizer)
            return optim.state_dict(optimizer, self._names, _native.read_optimizer_state(self._native))

        def load_state_dict(values: Any) -> None:
            """In the trial's constructor."""
            if self._has_begun:
                raise _native.ConfigError("optimizer.load_state_dict() was called after training has begun: "
                                          "call it before")
            optim.load_state_dict(optimizer, values)

        patches.take_optimizer(optimizer, state_dict=state_dict, load_state_dict=load_state_dict)

    def _begin(self, batch: int) -> None:
        """Training begins or goes on: the optimizers' states to the engine, where it has none of a checkpoint."""
        self._has_begun = True
        for optimizer in self._computed:
            if optimizer.state:
                state = optim.take_state(optimizer, self._names)
                if batch == 0:
                    _native.replace_optimizer_state(self._native, state)

    def wrap_lr_scheduler(self, scheduler: Any, every: str = "step") -> Any:
        """Calls ``scheduler.step()`` after each optimizer step, or each epoch (``every="epoch"``), and keeps its state in
        checkpoints."""
        if every not in ("step", "epoch"):
            raise _native.ConfigError(f"wrap_lr_scheduler(every={every!r}): give 'step' or 'epoch'")
        self._schedulers.append((scheduler, every))
        # PyTorch counts the optimizer's steps to warn of a scheduler that comes first.
        scheduler.optimizer._opt_called = True
        return scheduler

    def data_set(self, format: str, **keys: Any) -> DataSet:
        """Opens one of dtrain's own data sets, which threads of the engine read: in memory once per host.

        ``format`` and ``keys`` as for :class:`dtrain.data.Loader`, with batches of ``global_batch_size``:
        ``data_set("idx", features="train-images.gz", target="train-labels.gz")``. Relative paths start from the folder of the
        experiment file. Every rank makes the same calls.
        """
        native = self._native
        batch_size = native.batch_size * (1 if native.predicts else native.world_size)
        return DataSet(native, _given({"format": format, **keys}), native.resolve(""), batch_size)

    def clip_gradient_norm(self, max_norm: float) -> None:
        """Scales gradients down to this L2 norm over all parameters, before each optimizer step."""
        self._native.clip_gradient_norm(max_norm)

    def clip_gradient_value(self, max_value: float) -> None:
        """Limits each element of the gradients before each optimizer step."""
        self._native.clip_gradient_value(max_value)

    def reduce_lr_on_plateau(self, factor: float = 0.1, patience: int = 10, min_delta: float = 0,
                             min_factor: float = 0) -> None:
        """Lowers all learning rates when searcher.metric no longer improves."""
        self._lowers_rates = True
        self._native.reduce_lr_on_plateau(factor, patience, min_delta, min_factor)

    def stop_early(self, metric: str = "", smaller_is_better: bool = True, patience: int = 1,
                   min_delta: float = 0) -> None:
        """Ends the training when a validation metric no longer improves."""
        self._native.stop_early(metric, smaller_is_better, patience, min_delta)

    def save_checkpoint(self) -> None:
        """Asks for a checkpoint, besides those of the experiment. It is taken after one of the next batches, the same on
        all ranks, as soon as the one before is written. One rank's call is enough."""
        self._native.save_checkpoint()

    def add_callback(self, callback: Callback) -> None:
        self._native.add_callback(callback)

    def backward(self, loss: torch.Tensor, weight: float | None = None, models: Iterable[str] = (),
                 more_follows: bool = False, retain_graph: bool = False) -> None:
        """Use this in ``train_batch()`` instead of ``loss.backward()``: gradients are exchanged while it runs.

        ``weight``: how many items the loss is the mean of, where batches count differently (tokens). ``models``: of
        several models, those that get a gradient. ``more_follows``: another backward() of this batch adds to it.
        """
        self._native.backward(loss, weight, list(models), more_follows, retain_graph)

    def step(self) -> None:
        """With several models, within a batch: an optimizer step of those that backward() was called for."""
        self._check()
        self._native.step()

    def log(self, name: str, value: float | torch.Tensor | Metric) -> None:
        """Adds a value to the metrics of the batch under way."""
        self._native.log(name, value)

    def log_image(self, name: str, image: torch.Tensor) -> None:
        """Adds a picture of this batch to TensorBoard's events: rank 0's, the other ranks only check theirs.

        ``image``: [height, width], [channels, height, width], or [pictures, channels, height, width], which are shown
        beside each other, with 1, 3 or 4 channels: uint8, or floating values from 0 to 1.
        """
        self._native.log_image(name, image)

    def log_histogram(self, name: str, values: torch.Tensor) -> None:
        """Adds a histogram of a tensor's elements to TensorBoard's events of this batch: rank 0's."""
        self._native.log_histogram(name, values)

    def scope(self, name: str) -> AbstractContextManager[None]:
        """``with context.scope("name")``: the block's time shows under this name in reports, summaries and traces."""
        return self._native.scope(name)

    def all_reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return self._native.all_reduce(tensor, reduction)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._native.all_gather(tensor)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        return self._native.broadcast(tensor, root)

    def _check(self) -> None:
        for watch in self._watches:
            watch.check()

    def _call_hooks(self, hooks: Callable[..., Any]) -> None:
        """Those of the optimizers, before or after a step of the engine's. Optimizers that step by themselves call theirs."""
        if self._native.logical_ranks and any(map(optim.has_hooks, self._computed)):
            raise _native.ConfigError("an optimizer has hooks (register_step_pre_hook(), register_step_post_hook()), which are not "
                                      "supported yet with reproducibility.virtual_ranks: leave one of both out")
        if any(optim.has_hooks(optimizer) for optimizer in self._of_models):
            raise _native.ConfigError("an optimizer has hooks (register_step_pre_hook(), register_step_post_hook()), which a Trial "
                                      "with several models does not call: call what they do in train_batch()")
        for optimizer in self._computed:
            if optim.has_hooks(optimizer):
                hooks(optimizer, (optimizer,), {})


class Callback:
    """Override what you need. Functions are called on every rank; ``batch``: the last one that was trained."""

    def on_training_start(self, batch: int, epoch: int) -> None: ...
    def before_batch(self, batch: int, epoch: int) -> None: ...
    def after_batch(self, batch: int, epoch: int, metrics: dict[str, Any]) -> None: ...
    def on_epoch_end(self, batch: int, epoch: int) -> None: ...
    def on_validation_end(self, batch: int, epoch: int, metrics: dict[str, float]) -> None: ...
    def on_checkpoint(self, batch: int, epoch: int) -> None: ...
    def on_training_end(self, batch: int, epoch: int) -> None: ...

    def state_dict(self) -> Any:
        """What load_state_dict() needs in a run that goes on from here."""
        return None

    def load_state_dict(self, state: Any) -> None: ...


class Trial:
    """Subclass it, and name it in the experiment: ``entrypoint: train.py:MyTrial``.

    The constructor gets the :class:`Context`: it wraps the model and the optimizer.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def training_loader(self) -> Iterable[Any]:
        """Batches of all ranks, such as a DataLoader of batch_size global_batch_size: each rank gets its part of each."""
        raise NotImplementedError(f"{type(self).__name__} has no training_loader()")

    def validation_loader(self) -> Iterable[Any] | None:
        """None: nothing is validated."""
        return None

    def train_batch(self, batch: Any) -> dict[str, Any]:
        """Forward, loss, ``self.context.backward(loss)``; returns metrics. The optimizer steps after it returns."""
        raise NotImplementedError(f"{type(self).__name__} has no train_batch()")

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        """The metrics of a batch of validation. Gradients are off, and the model is in evaluation mode."""
        raise NotImplementedError(f"{type(self).__name__} has a validation_loader(), and no evaluate_batch()")

    def predict_batch(self, batch: Any) -> torch.Tensor:
        """The model's outputs for a batch of validation, for ``dtrain predict``: a tensor whose first dimension counts the
        samples. Called as :meth:`evaluate_batch`. By default the forward of the only model, with the batch, or with the first
        field of a tuple or a list."""
        models = self.context._models
        if len(models) != 1 or isinstance(batch, dict):
            raise NotImplementedError(f"{type(self).__name__} has {'several models' if len(models) != 1 else 'batches of named fields'}, "
                                      "and no predict_batch()")
        return models[0](batch[0] if isinstance(batch, (tuple, list)) else batch)

    def save_more(self, folder: str) -> Iterable[str | os.PathLike[str]]:
        """On rank 0, once the final weights are in ``folder``/model.safetensors: writes more files there, returns them."""
        return []

    def state_dict(self) -> Any:
        """The trial's own state, besides model, optimizer, schedulers and loaders: tensors, numbers, texts."""
        return None

    def load_state_dict(self, state: Any) -> None: ...


class _Steps(Callback):
    """Steps the schedulers of wrap_lr_scheduler(), and the optimizers that the engine does not compute."""

    def __init__(self, context: Context, frequency: int) -> None:
        self._context = context
        self._frequency = frequency
        self._batches = 0  # since the last optimizer step, or some steps more
        self._optimizers = [optimizer for optimizer, _ in context._own_steps]
        self._restored: set[str] = set()  # what has the state of a checkpoint: "schedulers", "optimizers"

    def on_training_start(self, batch: int, epoch: int) -> None:
        self._context._begin(batch)
        if batch == 0:
            return
        if self._optimizers and "optimizers" not in self._restored:
            raise optim.no_state_of(self._optimizers)
        steps, self._batches = _native.optimizer_steps(self._context._native)
        if "schedulers" not in self._restored:
            self._catch_up(steps, epoch)

    def _catch_up(self, steps: int, epoch: int) -> None:
        """The run begins with the training state of a trial without these schedulers of torch.optim: steps them to there."""
        for scheduler, every in self._context._schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                self._context._native.warn("ReduceLROnPlateau begins anew: the checkpoint does not have what it has seen")
                continue
            for _ in range(steps if every == "step" else epoch):
                scheduler.step()

    def before_optimizer(self) -> None:
        """A batch has been computed: the engine's step follows, unless batches are aggregated."""
        if (self._batches + 1) % self._frequency == 0:
            self._context._call_hooks(optim.before_step)

    def after_batch(self, batch: int, epoch: int, metrics: dict[str, Any]) -> None:
        self._context._check()
        for _, own in self._context._own_steps:
            own.after_batch()
        self._batches += 1
        if self._batches % self._frequency == 0:
            self._context._call_hooks(optim.after_step)
            self._step("step")

    def on_epoch_end(self, batch: int, epoch: int) -> None:
        self._step("epoch")

    def _step(self, every: str) -> None:
        for scheduler, when in self._context._schedulers:
            if when == every:
                scheduler.step()

    def state_dict(self) -> Any:
        schedulers = [scheduler for scheduler, _ in self._context._schedulers]
        return {"schedulers": [scheduler.state_dict() for scheduler in schedulers],
                "scheduler_kinds": optim.kinds_of(schedulers),
                "rates": [[group["lr"] for group in scheduler.optimizer.param_groups] for scheduler in schedulers],
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                "optimizer_kinds": optim.kinds_of(self._optimizers)}

    def load_state_dict(self, state: Any) -> None:
        kinds = optim.kinds_of(self._optimizers)
        if len(state["optimizers"]) == len(kinds) and state.get("optimizer_kinds", kinds) == kinds:
            self._restored.add("optimizers")
            for optimizer, values in zip(self._optimizers, state["optimizers"]):
                optim.load_own_state(optimizer, values)
        schedulers = [scheduler for scheduler, _ in self._context._schedulers]
        other = optim.other_schedulers(schedulers, state)
        if other:
            self._context._native.warn(f"{other}: those of this run are stepped to where it begins")
            return
        self._restored.add("schedulers")
        for scheduler, values, rates in zip(schedulers, state["schedulers"], state["rates"]):
            scheduler.load_state_dict(values)
            for group, rate in zip(scheduler.optimizer.param_groups, rates):
                group["lr"] = rate


class _Bound:
    """What the engine calls: a trial whose loaders are divided."""

    def __init__(self, make: Callable[[Context], Trial], native: Any) -> None:
        self._context = Context(native)
        self._trial = make(self._context)
        self.name = type(self._trial).__name__
        optim.refuse_others([*self._context._computed, *self._context._of_models,
                             *(optimizer for optimizer, _ in self._context._own_steps)], self._context._names)
        if self._context._lowers_rates and self._context._own_steps:
            raise _native.ConfigError(
                f"context.reduce_lr_on_plateau() lowers the rates of optimizers that dtrain computes, and "
                f"{type(self._context._own_steps[0][0]).__name__} steps by itself: use torch.optim.lr_scheduler.ReduceLROnPlateau "
                "in a Callback's on_validation_end()")
        self._steps = _Steps(self._context, native.aggregation_frequency)
        if self._context._schedulers or self._context._watches or self._context._own_steps:
            native.add_own_callback(self._steps)
        for name in ("predict_batch", "save_more", "state_dict", "load_state_dict"):
            setattr(self, name, getattr(self._trial, name))

    def _seed_logical_rank(self) -> None:
        """The engine has seeded torch's stream for the logical rank's batch; random's and numpy's follow from it."""
        if self._context._native.logical_ranks:
            seed_python(int(torch.empty((), dtype=torch.int64).random_()))

    def evaluate_batch(self, batch: Any) -> Any:
        self._seed_logical_rank()
        return self._trial.evaluate_batch(batch)

    def train_batch(self, batch: Any) -> Any:
        self._seed_logical_rank()
        metrics = self._trial.train_batch(batch)
        self._context._buffers.take()
        self._steps.before_optimizer()
        return metrics

    def _sources(self, loader: Any, whole_batches: bool = False) -> list[Source]:
        """One for each logical rank of this process: without virtual ranks, for this rank. None: there is no loader."""
        if loader is None:
            return []
        native = self._context._native
        if isinstance(loader, Loader):
            loader = loader._of_run(native)
        if not native.logical_ranks:
            return [Source(loader, self._context.rank, self._context.world_size, native.seed, whole_batches, self._context, compares=True,
                           deals=native.predicts)]
        ranks = range(*native.logical_ranks)
        draws = sample_division.Draws(loader, len(ranks))
        return [Source(loader, rank, self._context.world_size, native.seed, whole_batches, self._context if rank == ranks[0] else None,
                       compares=True, draws=draws) for rank in ranks]

    def training_loader(self) -> list[Source]:
        with drawn_alike(self._context._native.seed, 1):  # such as a split
            loader = self._trial.training_loader()
        sources = self._sources(loader, whole_batches=True)
        is_trained = bool(sources) and not self._context._native.predicts
        if is_trained and sources[0].batch_size not in (None, self._context.global_batch_size):
            raise _native.ConfigError(
                f"training_loader() has batches of {sources[0].batch_size}, and hyperparameters.global_batch_size is "
                f"{self._context.global_batch_size}: give the DataLoader batch_size=context.global_batch_size")
        return sources

    def validation_loader(self) -> list[Source]:
        with drawn_alike(self._context._native.seed, 2):
            loader = self._trial.validation_loader()
        return self._sources(loader)


def run_trial(trial: Callable[[Context], Trial], arguments: list[str]) -> int:
    """Runs one rank of a trial from start to end, and returns the process's exit code.

    ``arguments``: those of a rank program: its name, the experiment file and options. `dtrain launch` gives them.
    """
    return _native.run_trial(lambda native: _Bound(trial, native), arguments)
