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

from . import _native, exits, moving, optim, patches, torchrun
from .averages import AveragedBackward, LaterBackward
from .collectives import Collectives
from .data import DataSet, Loader
from .sample_division import Source
from .script_loader import ScriptLoader, ScriptState
from .script_start import ScriptContext, arguments_of

_State = _native.ScriptLoop.State

#: A rank program's arguments where `dtrain launch` or `dtrain run` has started the script (rank.py).
rank_arguments: list[str] | None = None
#: Those that a fork of the waiting interpreter was started with (rank.py); None: this process is none.
variables_of_fork: dict[bytes, bytes] | None = None
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

    @property
    def batches_done(self) -> int:
        """How many batches the run has trained, those before it was stopped included: optimizer steps, where gradients are not
        aggregated by the experiment. A loop without a loader counts from here on: ``for step in range(session.batches_done,
        steps)``."""
        return self._loop.batches

    @property
    def epochs_done(self) -> int:
        """How many epochs of the loader the run has trained, those before it was stopped included. ``for epoch in
        range(session.epochs_done, epochs)`` goes on in the epoch in which the run was stopped; a loop from 0 runs the code of
        the epochs before that once more, without batches."""
        return 0 if self._loader is None else self._loader.epochs_done()

    def wrap(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any] | None = None,
             *schedulers: Any, clip_gradient_norm: float | None = None,
             clip_gradient_value: float | None = None) -> tuple[Any, ...]:
        """Takes model, optimizer, the training loader and schedulers, and returns them for the loop. Once.

        The model stays the same object; its parameters get the values of rank 0. ``optimizer.step()`` and
        ``loss.backward()`` go to the engine from now on: a batch is trained by the two, and by nothing else. The loader's
        batches are those of all ranks: each rank gets its part. Without a loader the script has each rank's batches itself,
        and its loop counts from ``batches_done``. Schedulers of torch.optim.lr_scheduler are kept in checkpoints; the loop
        steps them as ever. Gradients are clipped by the keywords, because they are averaged within ``optimizer.step()``.
        """
        if self._script_state is not None or self._loader is not None:
            raise _native.ConfigError(_TWICE)
        if hasattr(loader, "step") and hasattr(loader, "optimizer"):  # a scheduler, and no loader
            loader, schedulers = None, (loader, *schedulers)
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
        source = None if loader is None else self._source_of(loader)
        state = ScriptState(self, optimizer, list(schedulers), own_steps=self._watch is None)
        self._script_state = state
        self._loop.keep_state(state.save, state.load)
        self._optimizer = optimizer
        self._take_over(optimizer)
        if source is None:
            model.register_forward_pre_hook(_before_forward)
        else:
            self._loader = ScriptLoader(self, source, loader)
        self._loop.begin(None if source is None else source.length())
        self._leave_if_over()
        state.begin()
        if self._watch is not None and optimizer.state:
            self._give_state()
        return (model, optimizer, *([] if self._loader is None else [self._loader]), *schedulers)

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
        ``load_state_dict()``. In a run that goes on they get their state here, or in :meth:`wrap` if that comes later; and once
        more where the loop over the loader goes on, after the code of epochs that are over has run again. Each rank keeps its
        own. Before the first batch.
        """
        if self._has_begun:
            raise _native.ConfigError("session.keep() was called after the first batch: call it before")
        for name, kept in objects.items():
            if not hasattr(kept, "state_dict") or not hasattr(kept, "load_state_dict"):
                raise _native.ConfigError(f"session.keep({name}=…): a {type(kept).__name__} has no state_dict() and "
                                          "load_state_dict()")
        self._kept |= objects
        if self._script_state is not None:
            self._script_state.load_kept(objects)

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

    def log_validation(self, metrics: Mapping[str, float | torch.Tensor]) -> None:
        """Writes metrics of a validation, which are the same on all ranks (:meth:`mean`), to metrics.jsonl. Each is a number, or
        a tensor of one element, and is kept as a float: it may be nan, and whole numbers beyond 2**53 are rounded."""
        self._context._native.write_validation(self._loop.batches, max(0, self._loop.epoch), dict(metrics))

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
        if self._loader is not None and self._loader.was_left_on_the_way():
            return self._loop.fail(
                "the script has left its loop in an epoch that the run has trained before, without coming to where the run goes on: "
                "code of such epochs (an early stop) runs again\n  begin the loop there: for epoch in range(session.epochs_done, …)")
        if self._loader is not None:
            self._loader.close()
        code = self._loop.finish()
        self._context.is_closed = True
        patches.take_backward(None)
        return code

    def _open_batch(self, samples: int, share: float, place: int = -1) -> None:
        """A forward pass follows, of so many samples of this rank."""
        self._share = share
        self._loop.open_batch(samples, place)
        self._leave_if_over()

    def _end_epoch(self) -> None:
        self._loop.end_epoch()
        self._leave_if_over()

    def _restore_state(self) -> None:
        if self._script_state is not None:
            self._script_state.settle(reloads=True)

    def _fail(self, error: str) -> int:
        return self._loop.fail(error)

    def _source_of(self, loader: Iterable[Any]) -> Source:
        if isinstance(loader, Loader):
            self._use_batch_size(loader.batch_size)
            return Source(loader._of_run(self._context._native), self._rank, self._world_size, self._context._native.seed,
                          whole_batches=True)
        source = Source(loader, self._rank, self._world_size, self._context._native.seed, whole_batches=True,
                        context=self._context)
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
        patches.take_backward(self._take_backward)
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
            """Gradients are zeroed by the step; those that no step was made with are dropped."""
            self._loop.drop_gradients()
            self._leave_if_over()

        def state_dict() -> Any:
            """Collective: every rank has to call it, between two batches."""
            return optim.state_dict(optimizer, self._context._names, _native.read_optimizer_state(self._loop.context))

        def load_state_dict(values: Any) -> None:
            """Before the first batch. Collective."""
            if self._has_begun:
                raise _native.ConfigError("optimizer.load_state_dict() was called after the first batch: call it before")
            optim.load_state_dict(optimizer, values)
            self._give_state()

        if self._watch is None:  # it steps by itself, in the hook
            self._loop.after_update(self._context._own_steps[0][1].after_batch)
            load = optimizer.load_state_dict
            patches.take_optimizer(optimizer, step=step, zero_grad=zero_grad, load_state_dict=lambda values: self._load_own(
                load, values))
        else:
            patches.take_optimizer(optimizer, step=optim.with_hooks(optimizer, step), zero_grad=zero_grad, state_dict=state_dict,
                                   load_state_dict=load_state_dict)
        patches.take_backward(self._take_backward)

    def _load_own(self, load: Any, values: Any) -> None:
        # A run that goes on has the state of its checkpoint.
        if self._has_begun or self._loop.batches == 0:
            load(values)

    def _give_state(self) -> None:
        """The optimizer's state to the engine. A run that goes on has that of its checkpoint."""
        state = optim.take_state(self._optimizer, self._context._names)
        if self._loop.batches == 0:
            _native.replace_optimizer_state(self._loop.context, state)

    def _take_backward(self, losses: list[torch.Tensor], gradients: list[Any], retain_graph: bool, create_graph: bool,
                       inputs: Any) -> bool:
        """A backward() of the script. False: it is PyTorch's own, of something else than the model."""
        averages, loop = self._averages, self._loop
        if averages is not None and not averages.is_active or loop.state in (_State.SETTING_UP, _State.ENDED):
            return False
        if averages is None and not any(loop.reaches_model(loss) for loss in losses):
            return False
        names = self._context._names
        if inputs is not None and averages is None:
            given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            if not any(tensor in names for tensor in given):
                return False
        if create_graph or inputs is not None:
            raise _native.ConfigError("backward(create_graph=True) and backward(inputs=…) are not supported by dtrain: take "
                                      "gradients of gradients with torch.autograd.grad(create_graph=True), and add them to the loss")
        weighted = [loss if gradient is None else (loss * gradient).sum() for loss, gradient in zip(losses, gradients)]
        loss = weighted[0] if len(weighted) == 1 else sum(weighted)
        if averages is not None:
            averages.backward(loss, retain_graph)
        else:
            if not self._has_begun:
                moving.refuse_parallel_around(self._model)
            self._has_begun = True
            if self._loader is not None and loop.state == _State.FORWARD:
                self._loader.compare()
            loop.backward(loss, self._share, self._more_follows, retain_graph)
        self._leave_if_over()
        return True

    def _step(self) -> None:
        if self._watch is not None:
            self._watch.check()
        self._context._buffers.take()
        before = self._loop.batches
        self._loop.update()
        self._leave_if_over()
        if self._loop.batches == before:  # there was nothing to step with
            return
        if self._script_state is not None:
            self._script_state.settle(reloads=False)
        if self._loader is not None:
            self._loader.note_step()

    def _leave_if_over(self) -> None:
        # After an error, or a signal. A run that has reached its length goes on with the rest of the script.
        if self._loop.state == _State.ENDED and self._loop.exit_code != 0:
            raise SystemExit(self._loop.exit_code)

    def _is_long_enough(self, epoch: int) -> bool:
        count, unit = self._length
        if unit == "epochs":
            return epoch >= count
        return self._loop.batches >= (count if unit == "batches" else -(-count // self._context.global_batch_size))


def _before_forward(module: torch.nn.Module, inputs: Any) -> None:
    """Of a model without a loader: a batch may begin. A function of this module, so that copies of the model can be made."""
    session = _session
    if session is None or module is not session._model or not module.training or not torch.is_grad_enabled():
        return
    if session._loop.state in (_State.READY, _State.UPDATED):
        session._open_batch(session._context.batch_size, 1.0)


def start_anew_if_too_late() -> None:
    """torch._dynamo reads its variables when it is imported, which in a fork was before the script could set them. A process
    whose script has set some becomes one that was started."""
    before = variables_of_fork
    if before is None:
        return
    names = {name for name in before.keys() | os.environb.keys() if name.startswith((b"TORCH", b"PYTORCH"))}
    if any(before.get(name) != os.environb.get(name) for name in names):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.orig_argv[0], sys.orig_argv, before)


def current() -> Session | None:
    """The session of this process, if init() was called."""
    return _session


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
    if torchrun.record is not None:
        raise _native.ConfigError('init_process_group("dtrain") has begun the records of this script: call dtrain.init() before it, '
                                  "or set DTRAIN_RECORD=false")
    start_anew_if_too_late()
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
