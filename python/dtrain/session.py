"""Training whose loop is the script's own."""
from __future__ import annotations

import atexit
import builtins
import dis
import inspect
import json
import os
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from . import _native, optim
from .averages import AveragedBackward
from .data import DataSet, Loader, Source, samples_of
from .trial import Context

_State = _native.ScriptLoop.State
_tensor_backward = torch.Tensor.backward

#: A rank program's arguments where `dtrain launch` or `dtrain run` has started the script (rank.py).
rank_arguments: list[str] | None = None
_session: Session | None = None
_TWICE = "session.wrap() was called twice; a script with several models is a dtrain.Trial"


class Session:
    """A rank's part in the training of a script. :func:`init` makes it."""

    def __init__(self, arguments: list[str]) -> None:
        self._loop = _native.ScriptLoop(arguments)
        if self._loop.state == _State.ENDED:  # it has said why
            raise SystemExit(self._loop.exit_code)
        self._context = Context(self._loop.context)
        self._rank = self._context.rank
        self._world_size = self._context.world_size
        self._device = self._context.device
        self._loader: _Loader | None = None
        self._schedulers: list[Any] = []
        self._kept: dict[str, Any] = {}  # by name, for checkpoints
        self._length: tuple[int, str] = self._context._native.max_length
        self._more_follows = False
        self._has_begun = False  # with a batch in this process
        self._share = 1.0  # of the batch under way
        self._added_samples = 0  # of a part of it that backward() was not called for yet
        self._watch: optim.SettingsWatch | None = None
        self._averages: AveragedBackward | None = None
        self._evaluated: torch.nn.Module | None = None  # by a script that may train nothing
        self._restored: Any = None  # of a checkpoint that the run goes on from, until the loop is there

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
        return self._context.run_dir

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
        self._context.wrap_model(model)
        self._context.wrap_optimizer(optimizer)
        self._watch = self._context._watches[0] if self._context._watches else None
        if clip_gradient_norm is not None:
            self._context.clip_gradient_norm(clip_gradient_norm)
        if clip_gradient_value is not None:
            self._context.clip_gradient_value(clip_gradient_value)
        source = self._source_of(loader)
        self._schedulers = list(schedulers)
        self._loop.keep_state(self._state, self._load_state)
        self._optimizer = optimizer
        self._take_over(optimizer)
        self._loader = _Loader(self, source, loader)
        self._loop.begin(source.length())
        self._leave_if_over()
        self._check_restored()
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

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, rank 0's first. Ranks may have different numbers of rows. Collective."""
        rows = torch.tensor([tensor.shape[0]], dtype=torch.int64)
        counts = [int(count) for count in self._context.all_gather(rows)]
        padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
        padded[:tensor.shape[0]] = tensor.detach()
        parts = self._context.all_gather(padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    def mean(self, value: float | torch.Tensor, weight: float = 1) -> float:
        """The mean of all ranks' values, weighted: by the number of samples, say. Collective."""
        # A part without samples has no mean.
        sums = torch.tensor([float(value) * weight if weight else 0.0, weight], dtype=torch.float64)
        total, weights = self._context.all_reduce(sums).tolist()
        return total / weights if weights else float("nan")

    def close(self) -> int:
        """Ends the run: writes the weights, the profile and the summary. Returns the exit code. The end of the script
        calls it."""
        if self._loop.state == _State.SETTING_UP and self._evaluated is not None:
            self._wrap_averages(self._evaluated, iter(()))  # a run without a batch
        if self._loop.state == _State.SETTING_UP:
            return self._loop.fail("the script has ended without a call of session.wrap()")
        if self._loop.state == _State.TRAINING:
            self._finish_batch()
        code = self._loop.finish()
        _restore()
        return code

    def _begin_batch(self, samples: int, share: float) -> None:
        """A batch is to be trained on; or another part of the one that is under way, whose gradients are added."""
        self._share = share
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
        if self._averages is not None:
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
        self._loader = _Loader(self, source, loader)
        torch.Tensor.backward = _backward  # type: ignore[method-assign]
        self._loop.begin(source.length())
        self._leave_if_over()
        return self._averages

    def _use_batch_size(self, batch_size: int | None) -> None:
        native = self._context._native
        if batch_size is None:
            return
        if "batch_size_of_loader" in self.hyperparameters and self.hyperparameters["batch_size_of_loader"]:
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

    def _state(self) -> Any:
        own = None if self._watch is not None else self._optimizer.state_dict()
        given = self._loader.given if self._loader is not None else 0
        return {"schedulers": [scheduler.state_dict() for scheduler in self._schedulers], "optimizer": own, "given": given,
                "kept": {name: one.state_dict() for name, one in self._kept.items()},
                "scheduler_kinds": optim.kinds_of(self._schedulers), "optimizer_kinds": optim.kinds_of([self._optimizer])}

    def _load_state(self, state: Any) -> None:
        self._restored = state

    def _check_restored(self) -> None:
        """An optimizer that steps by itself has its state in that of the script alone."""
        if self._watch is not None or self._loop.batches == 0:
            return
        state = self._restored
        has_one = state is not None and state["optimizer"] is not None
        if not has_one or state.get("optimizer_kinds") not in (None, optim.kinds_of([self._optimizer])):
            raise optim.no_state_of([self._optimizer])

    def _restore_state(self) -> int | None:
        """Once the loop is where the run goes on: what it has stepped on the way there does not count. Returns how many
        batches of the epoch the loader had given: several for each step where gradients were accumulated."""
        state, self._restored = self._restored, None
        if state is None:
            anew = [*(["the schedulers"] if self._schedulers else []), *(["the objects of session.keep()"] if self._kept else [])]
            if self._loop.batches > 0 and anew:
                self._context._native.warn(
                    f"{' and '.join(anew)} of the script begin anew, because the checkpoint of another program has no state of "
                    "them: set them to where they should be before the loop")
            return None
        if self._watch is None:
            self._optimizer.load_state_dict(state["optimizer"])
        other = optim.other_schedulers(self._schedulers, state)
        if other:
            self._context._native.warn(f"{other}: those of the script begin anew; step them to where they should be before "
                                       "the loop")
        for scheduler, values in zip(self._schedulers, [] if other else state["schedulers"]):
            scheduler.load_state_dict(values)
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                group["lr"] = rate
        kept = state.get("kept", {})
        for name, one in self._kept.items():
            if name in kept:
                one.load_state_dict(kept[name])
        missing = ", ".join(sorted(self._kept.keys() ^ kept.keys()))
        if missing:
            self._context._native.warn(f"session.keep(): the checkpoint and the script do not have the same names ({missing}); "
                                       "what only one of them has begins anew, or is left out")
        given: int | None = state.get("given")
        return given


class _Loader:
    """The training loader: each iteration is an epoch. It has the attributes of the loader that was wrapped."""

    def __init__(self, session: Session, source: Source, loader: Any) -> None:
        self._session = session
        self._source = source
        self._wrapped = loader
        self._epochs = 0  # that have been begun
        self.given = 0  # batches of the epoch under way
        self._is_open = False

    def __len__(self) -> int:
        length = self._source.length()
        if length is None:
            raise TypeError("the loader has no length")
        return length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def __iter__(self) -> Iterator[Any]:
        session, loop = self._session, self._session._loop
        if self._is_open:  # the loop was left in the middle of an epoch
            session._end_epoch()
        epoch, self._epochs = self._epochs, self._epochs + 1
        if loop.state == _State.ENDED or epoch < loop.epoch or session._is_long_enough(epoch):
            return  # it is over: the run has reached its length, or goes on from a checkpoint after it
        given = session._restore_state()
        self.given = loop.skipped_batches if given is None or loop.skipped_batches == 0 else given
        self._is_open = True
        for batch in self._source.epoch(epoch, self.given):
            self.given += 1
            session._begin_batch(samples_of(batch), self._source.share)
            yield batch
            # Now the script has stepped its schedulers: the batch may be saved.
            loop.end_batch()
            session._leave_if_over()
            if session._is_long_enough(epoch):
                # Within an epoch, which is not over: a longer run goes on here.
                self._is_open = False
                return
        self._is_open = False
        session._end_epoch()


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
    contents: Path | None = None
    if rank_arguments is not None:
        if experiment is not None or settings:
            raise _native.ConfigError("dtrain.init() takes no experiment where dtrain has started the script: "
                                      "set its keys in the experiment file, or with --set")
        if run_dir is not None:
            raise _native.ConfigError("dtrain.init() takes no run_dir where dtrain has started the script: "
                                      "give --run-dir on the command line")
        arguments = rank_arguments
    elif experiment is not None:
        if settings:
            raise _native.ConfigError("dtrain.init() was given an experiment file and settings: put them into the file")
        arguments = [sys.argv[0], os.fspath(experiment)]
    else:
        script = _script()
        contents = _write_experiment(script, settings)
        # Relative paths in it, and of data_set(), start from the script's folder, as under `dtrain run`. Errors name this
        # file, and no file has this name.
        named = script.with_name(f"{script.name} (dtrain.init)")
        arguments = [sys.argv[0], str(named), "--contents", str(contents)]
    if run_dir is not None:
        arguments[1:1] = ["--run-dir", os.fspath(run_dir), "--or-continue"]
    _session = Session(arguments)
    if contents is not None:  # the run has a copy
        shutil.rmtree(contents.parent, ignore_errors=True)
    if rank_arguments is None:
        atexit.register(_end_of_process)
        sys.excepthook = _note_failure
        _note_exits()
    return _session


def _world_size() -> int:
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "PET_NNODES"):
        if name in os.environ:
            return int(os.environ[name].partition(":")[0])  # PET_NNODES=2:2
    return 1


def _script() -> Path:
    """The file that Python was started with, also after os.chdir(): Python keeps its absolute path. A notebook,
    ``python -c`` and ``python -`` (``<stdin>``) have none: then a name in the current folder."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).resolve() if file and not file.startswith("<") else Path.cwd() / "script"


def _write_experiment(script: Path, settings: Mapping[str, Any]) -> Path:
    world_size = _world_size()
    experiment = {"name": script.stem, "entrypoint": str(script),
                  "hyperparameters": {}, "resources": {"slots_per_trial": world_size},
                  "searcher": {"max_length": {"epochs": 1_000_000}}, **settings}
    experiment["hyperparameters"] = {"global_batch_size": world_size, "batch_size_of_loader": True,
                                     **experiment["hyperparameters"]}
    path = Path(tempfile.mkdtemp(prefix="dtrain-")) / "experiment.yaml"
    path.write_text(json.dumps(experiment))  # YAML includes JSON
    return path


_failure: str | None = None
_exit: SystemExit | None = None  # of the last sys.exit() of the main thread
_sys_exit = sys.exit
#: Frames that may have gone on without a return: of generators and coroutines.
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _note_exits() -> None:
    """sys.exit(), exit() and quit() of a script, and what it has imported from sys before: Python calls no excepthook for
    them. Of `raise SystemExit(3)` there is nothing to notice."""
    sys.exit = _note_exit
    script = vars(sys.modules["__main__"])
    script.update({name: _note_exit for name, value in script.items() if value is _sys_exit})
    for name in ("exit", "quit"):
        if hasattr(builtins, name):  # not with python -S
            setattr(builtins, name, _note_exit)


def _note_exit(code: Any = None, /) -> NoReturn:
    global _exit
    try:
        _sys_exit(code)
    except SystemExit as leave:
        if threading.current_thread() is threading.main_thread():  # another thread ends by itself
            _exit = leave
        raise


def _was_caught(leave: SystemExit) -> bool:
    """Whether the script has caught this exception, and gone on.

    Its traceback begins with the frame that has handled it last. One that has gone on was left by a return at some time;
    one that the exception has left (``raise``, ``finally``) stands at another instruction.
    """
    if leave.__traceback__ is None:
        return True  # the script has taken it away from the exception that it caught
    frame = leave.__traceback__.tb_frame
    suspends = bool(frame.f_code.co_flags & _SUSPENDS)
    if sys.version_info >= (3, 12) and (suspends or frame.f_back is not None):
        return True  # since then the traceback of one that nobody has caught begins with the outermost frame
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if suspends:
        return not instruction.startswith(("RAISE", "RERAISE"))
    return instruction.startswith("RETURN")


def _note_failure(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    global _failure
    _failure = "".join(traceback.format_exception(kind, error, trace)).rstrip()


def end(failure: str | None) -> int:
    """Ends the session, if there is one: with this error, or well. Returns the exit code."""
    if _session is None:
        if failure is not None:
            print(failure, file=sys.stderr)
        return 0 if failure is None else 1
    if failure is not None:
        return _session._fail("the script failed:\n" + failure)
    return _session.close()


def _end_of_process() -> None:
    if _failure is not None or _exit is None or _exit.code in (None, 0) or _was_caught(_exit):
        code = end(_failure)
    else:
        end(f"it ended with sys.exit({_exit.code!r})")
        code = _exit.code if isinstance(_exit.code, int) else 1
    if code != 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
