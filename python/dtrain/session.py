"""Training whose loop is the script's own."""
from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from . import _native, exits, moving, optim
from .averages import AveragedBackward, LaterBackward
from .collectives import Collectives
from .data import DataSet, Loader, Source
from .script_loader import ScriptLoader, ScriptState
from .script_start import ScriptContext, arguments_of

_State = _native.ScriptLoop.State
_tensor_backward = torch.Tensor.backward

#: A rank program's arguments where `dtrain launch` or `dtrain run` has started the script (rank.py).
rank_arguments: list[str] | None = None
_session: Session | None = None
_TWICE = "session.wrap() was called twice; a script with several models is a dtrain.Trial"


class Session(Collectives):
    """A rank's part in the training of a script. :func:`init` makes it."""

    def __init__(self, arguments: list[str]) -> None:
        self._loop = _native.ScriptLoop(arguments)
        if self._loop.state == _State.ENDED:  # it has said why
            raise SystemExit(self._loop.exit_code)
        self._context = ScriptContext(self._loop)
        self._rank = self._context.rank
        self._world_size = self._context.world_size
        self._device = self._context.device
        self._run_dir = self._context.run_dir
        self._loader: ScriptLoader | None = None
        self._kept: dict[str, Any] = {}  # by name, for checkpoints
        self._script_state: ScriptState | None = None  # of wrap()
        self._length: tuple[int, str] = self._context._native.max_length
        self._more_follows = False
        self._has_begun = False  # with a batch in this process
        self._model: torch.nn.Module | None = None  # of wrap()
        self._share = 1.0  # of the batch under way
        self._added_samples = 0  # of a part of it that backward() was not called for yet
        self._watch: optim.SettingsWatch | None = None
        self._averages: AveragedBackward | LaterBackward | None = None
        self._evaluated: torch.nn.Module | None = None  # by a script that may train nothing

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: the one that prints and writes files."""
        return self._rank == 0

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def run_dir(self) -> Path:
        return self._run_dir

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """The experiment's hyperparameters."""
        return self._context.hyperparameters

    def wrap(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any],
             *schedulers: Any, clip_gradient_norm: float | None = None,
             clip_gradient_value: float | None = None) -> tuple[Any, ...]:
        """Takes model, optimizer, the training loader and schedulers, and returns them for the loop. Once.

        The model stays the same object; its parameters get the values of rank 0. ``optimizer.step()`` and
        ``loss.backward()`` go to the engine from now on. The loader's batches are those of all ranks: each rank gets its
        part. Schedulers of torch.optim.lr_scheduler are kept in checkpoints; the loop steps them as ever. Gradients are
        clipped by the keywords, because they are averaged within ``optimizer.step()``.
        """
        if self._loader is not None:
            raise _native.ConfigError(_TWICE)
        moving.refuse_parallel(model)
        self._model = model
        beside = optim.beside(model, optimizer)
        self._context._wrap_model(model, "", beside)
        if beside and self.is_main:
            self._context._native.info(f"{', '.join(beside)} of the optimizer has parameters that are not the model's: they are "
                                       "trained with it and kept in checkpoints; the script saves them, model.safetensors has the "
                                       "model's alone")
        self._context.wrap_optimizer(optimizer)
        self._watch = self._context._watches[0] if self._context._watches else None
        if clip_gradient_norm is not None:
            self._context.clip_gradient_norm(clip_gradient_norm)
        if clip_gradient_value is not None:
            self._context.clip_gradient_value(clip_gradient_value)
        source = self._source_of(loader)
        state = ScriptState(self, optimizer, list(schedulers), own_steps=self._watch is None)
        self._script_state = state
        self._loop.keep_state(state.save, state.load)
        self._optimizer = optimizer
        self._take_over(optimizer)
        self._loader = ScriptLoader(self, source, loader)
        self._loop.begin(source.length())
        self._leave_if_over()
        state.check()
        if self._watch is not None and optimizer.state:
            self._give_state()
        return (model, optimizer, self._loader, *schedulers)

    def data_set(self, format: str, *, batch_size: int | None = None, **settings: Any) -> DataSet:
        """One of dtrain's own data sets: see :meth:`Context.data_set`. ``batch_size``: of all ranks, where no experiment
        file has it. Before ``wrap()``."""
        if batch_size is not None:
            self._use_batch_size(batch_size)
        return self._context.data_set(format, **settings)

    def no_sync(self) -> AbstractContextManager[None]:
        """``with session.no_sync(): loss.backward()``: another backward() before the next step adds to the gradients."""

        @contextmanager
        def more_follows() -> Iterator[None]:
            self._more_follows = True
            try:
                yield
            finally:
                self._more_follows = False

        return more_follows()

    def keep(self, **objects: Any) -> None:
        """Has checkpoints keep objects of the script's own: ``session.keep(stopper=stopper, averages=averages)``.

        Each has ``state_dict()``, which returns tensors, numbers, texts, None, and dicts and lists of them, and
        ``load_state_dict()``. In a run that goes on they get their state where the loop over the loader goes on: after the
        code of epochs that are over has run again. Each rank keeps its own. Before the first batch.
        """
        if self._has_begun:
            raise _native.ConfigError("session.keep() was called after the first batch: call it before")
        for name, one in objects.items():
            if not hasattr(one, "state_dict") or not hasattr(one, "load_state_dict"):
                raise _native.ConfigError(f"session.keep({name}=…): a {type(one).__name__} has no state_dict() and "
                                          "load_state_dict()")
        self._kept |= objects

    def save(self) -> None:
        """Asks for a checkpoint, besides those of the experiment. It is taken after one of the next batches, the same on
        all ranks, as soon as the one before is written. One rank's call is enough."""
        self._context.save_checkpoint()

    def log(self, name: str, value: Any) -> None:
        """Adds a value to the metrics of the batch under way: a number, a tensor or a :class:`dtrain.Metric`."""
        self._context.log(name, value)

    def log_image(self, name: str, image: torch.Tensor) -> None:
        """Adds a picture of this batch to TensorBoard's events: see :meth:`Context.log_image`."""
        self._context.log_image(name, image)

    def log_histogram(self, name: str, values: torch.Tensor) -> None:
        """Adds a histogram of a tensor's elements to TensorBoard's events: see :meth:`Context.log_histogram`."""
        self._context.log_histogram(name, values)

    def log_validation(self, metrics: Mapping[str, float]) -> None:
        """Writes metrics of a validation, which are the same on all ranks (:meth:`mean`), to metrics.jsonl."""
        values = {name: float(value) for name, value in metrics.items()}
        self._context._native.write_validation(self._loop.batches, max(0, self._loop.epoch), values)

    def scope(self, name: str) -> AbstractContextManager[None]:
        """``with session.scope("name")``: the block's time shows under this name in reports, summaries and traces."""
        return self._context.scope(name)

    def close(self) -> int:
        """Ends the run: writes the weights, the profile and the summary. Returns the exit code. The end of the script
        calls it."""
        if self._loop.state == _State.SETTING_UP and self._evaluated is not None:
            self._wrap_averages(self._evaluated, iter(()))  # a run without a batch
        if self._loop.state == _State.SETTING_UP:
            return self._loop.fail("the script has ended without a call of session.wrap()")
        if self._averages is not None:
            self._averages.compare_calls()
        if self._loop.state == _State.TRAINING:
            self._finish_batch()
        code = self._loop.finish()
        self._context.is_closed = True
        _restore()
        return code

    def _begin_batch(self, samples: int, share: float) -> None:
        """A batch is to be trained on; or another part of the one that is under way, whose gradients are added."""
        self._share = share
        if not self._has_begun:
            moving.refuse_parallel_around(self._model)
        self._has_begun = True
        if self._loop.state in (_State.UPDATED, _State.WANTS_BATCH):
            self._added_samples = 0
            self._loop.give_batch(samples)
            self._leave_if_over()
        else:
            self._added_samples = samples if self._loop.has_loss else 0

    def _skip_batch(self) -> None:
        """Instead of backward(): no parameter gets a gradient, and optimizers leave all as they are."""
        self._loop.backward(torch.zeros((), requires_grad=True), 1.0, False, False)

    def _end_epoch(self) -> None:
        if self._loop.state == _State.TRAINING:
            self._finish_batch()
        if self._loop.state in (_State.UPDATED, _State.WANTS_BATCH):
            self._loop.end_epoch()
        self._leave_if_over()

    def _finish_batch(self) -> None:
        # The loop was left between backward() and step(), or before both. The other ranks are where this one is.
        if isinstance(self._averages, AveragedBackward):
            self._averages.finish()
            return
        if not self._loop.has_loss or self._more_follows:
            self._loop.backward(sum((p.sum() for p in self._parameters if p.requires_grad), torch.zeros(())) * 0, 1.0,
                                False, False)
        self._loop.end_step()

    def _fail(self, error: str) -> int:
        return self._loop.fail(error)

    def _source_of(self, loader: Iterable[Any]) -> Source:
        if isinstance(loader, Loader):
            self._use_batch_size(loader.batch_size)
            return Source(loader._of_run(self._context._native), self._rank, self._world_size, self._context._native.seed,
                          whole_batches=True)
        source = Source(loader, self._rank, self._world_size, self._context._native.seed, whole_batches=True)
        self._use_batch_size(source.batch_size)
        return source

    def _wrap_averages(self, model: torch.nn.Module, loader: Iterable[Any]) -> AveragedBackward:
        """wrap() for optimizers that step by themselves, on gradients that each backward() averages."""
        if self._loader is not None:
            raise _native.ConfigError(_TWICE)
        self._context.wrap_model(model)
        self._averages = AveragedBackward(self._loop, self._context)
        source = self._source_of(loader)
        self._loader = ScriptLoader(self, source, loader)
        torch.Tensor.backward = _backward  # type: ignore[method-assign]
        self._loop.begin(source.length())
        self._leave_if_over()
        return self._averages

    def _use_batch_size(self, batch_size: int | None) -> None:
        native = self._context._native
        is_of_loader = "batch_size_of_loader" in self.hyperparameters and self.hyperparameters["batch_size_of_loader"]
        if batch_size is None:
            return
        if is_of_loader:
            native.use_global_batch_size(batch_size)
        elif batch_size != native.global_batch_size:
            raise _native.ConfigError(
                f"the loader has batches of {batch_size}, and hyperparameters.global_batch_size is "
                f"{native.global_batch_size}: give the DataLoader "
                "batch_size=session.hyperparameters['global_batch_size']; dtrain divides its batches among the ranks")

    def _take_over(self, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

        def step(closure: Any = None) -> Any:
            loss = None
            if getattr(optimizer, "grad_scale", None) is not None:
                raise _native.ConfigError("GradScaler has scaled the loss, and dtrain's step does not divide by its scale: leave "
                                          "GradScaler out, and use bfloat16")
            if closure is not None:
                if isinstance(optimizer, torch.optim.LBFGS):
                    raise optim.no_lbfgs()
                with torch.enable_grad():
                    loss = closure()
            self._step()
            return loss

        def zero_grad(set_to_none: bool = True) -> None:
            """Gradients are zeroed by the step."""

        def state_dict() -> Any:
            """Collective: every rank has to call it, between two batches."""
            return optim.state_dict(optimizer, self._context._names, _native.read_optimizer_state(self._loop.context))

        def load_state_dict(values: Any) -> None:
            """Before the first batch. Collective."""
            if self._has_begun:
                raise _native.ConfigError("optimizer.load_state_dict() was called after the first batch: call it before")
            optim.load_state_dict(optimizer, values)
            self._give_state()

        if self._watch is not None:  # an optimizer that steps by itself calls its hooks itself
            step = optim.with_hooks(optimizer, step)
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # PyTorch's schedulers look for it
        optimizer._opt_called = True  # type: ignore[attr-defined]
        if self._watch is None:
            self._loop.after_update(self._context._own_steps[0][1].after_batch)
        else:
            optimizer.state_dict, optimizer.load_state_dict = state_dict, load_state_dict  # type: ignore
        optimizer.step, optimizer.zero_grad = step, zero_grad  # type: ignore
        torch.Tensor.backward = _backward  # type: ignore[method-assign]

    def _give_state(self) -> None:
        """The optimizer's state to the engine. A run that goes on has that of its checkpoint."""
        state = optim.take_state(self._optimizer, self._context._names)
        if self._loop.batches == 0:
            _native.replace_optimizer_state(self._loop.context, state)

    def _backward(self, loss: torch.Tensor, retain_graph: bool) -> None:
        if self._added_samples > 0:
            self._loop.add_to_batch(self._added_samples)
            self._added_samples = 0
        self._loop.backward(loss, self._share, self._more_follows, retain_graph)

    def _step(self) -> None:
        if self._watch is not None:
            self._watch.check()
        self._context._buffers.take()
        self._loop.end_step()
        self._leave_if_over()

    def _leave_if_over(self) -> None:
        # After an error, or a signal. A run that has reached its length goes on with the rest of the script.
        if self._loop.state == _State.ENDED and self._loop.exit_code != 0:
            raise SystemExit(self._loop.exit_code)

    def _is_long_enough(self, epoch: int) -> bool:
        count, unit = self._length
        if unit == "epochs":
            return epoch >= count
        return self._loop.batches >= (count if unit == "batches" else -(-count // self._context.global_batch_size))


def _backward(self: torch.Tensor, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
              inputs: Any = None) -> None:
    session = _session
    if session is not None and session._averages is not None and session._averages.is_active:
        session._averages.backward(self, gradient, bool(retain_graph), create_graph, inputs)
        session._leave_if_over()
        return
    plain = gradient is None and not create_graph and inputs is None
    if session is None or not plain or session._loop.state != _State.TRAINING:
        _tensor_backward(self, gradient, retain_graph, create_graph, inputs)
        return
    session._backward(self, bool(retain_graph))


def current() -> Session | None:
    """The session of this process, if init() was called."""
    return _session


def _restore() -> None:
    torch.Tensor.backward = _tensor_backward  # type: ignore[method-assign]


def init(experiment: str | os.PathLike[str] | None = None, *, run_dir: str | os.PathLike[str] | None = None,
         **settings: Any) -> Session:
    """Starts this rank, and returns its session. Once in a process.

    Under `dtrain launch` and `dtrain run` the experiment is theirs. Under mpirun, srun and torchrun, and for a script that
    is started by itself, it is the file ``experiment``, or consists of ``settings``: the keys of an experiment file, such
    as ``optimizations={"mixed_precision": "bf16"}``. ``run_dir`` is the folder of the run then. If it holds a run, this one
    goes on from its newest checkpoint: for jobs that are started again with the same command.
    """
    global _session
    if _session is not None:
        raise _native.ConfigError("dtrain.init() was called twice")
    arguments, contents = arguments_of(experiment, run_dir, settings, rank_arguments)
    _session = Session(arguments)
    if contents is not None:  # the run has a copy
        shutil.rmtree(contents.parent, ignore_errors=True)
    if rank_arguments is None:
        exits.watch(end)
    return _session


def end(failure: str | None) -> int:
    """Ends the session, if there is one: with this error, or well. Returns the exit code."""
    if _session is None:
        if failure is not None:
            print(failure, file=sys.stderr)
        return 0 if failure is None else 1
    if failure is not None and _session._loop.state == _State.ENDED:  # the run has its exit code, and the script fails
        print(failure, file=sys.stderr)
        return _session._loop.exit_code or 1
    if failure is not None:
        return _session._fail("the script failed:\n" + failure)
    try:
        return _session.close()
    except Exception:  # such as ranks that have not called backward() equally often; the caller would lose it
        return _session._fail("the script failed:\n" + traceback.format_exc().rstrip()) or 1
