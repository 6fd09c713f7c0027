"""Lightning's Trainer on dtrain's engine::

    import dtrain.lightning

    trainer = lightning.Trainer(strategy=dtrain.lightning.Strategy(), max_epochs=3)

The LightningModule stays as it is. Loaders are divided by dtrain, for training and for validation: their batches are those of
all ranks together. With one optimizer and automatic optimization the engine exchanges gradients and updates in the optimizer's
step. Otherwise (:func:`_steps_by_itself`) each backward averages gradients, and optimizers are PyTorch's own. So it is in each
fit() after the first one, too, because a run trains one model once.
"""
from __future__ import annotations

import ctypes
import hashlib
import hmac
import inspect
import os
import pickle
import signal
import socket
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only

from . import _native, averages, optim, patches
from . import session as sessions
from ._native import ConfigError, Error, ScriptLoop
from .sample_division import Source, divided
from .script_start import EPOCHS_OF_SCRIPTS

_PRECISIONS = ("32-true", "64-true", "bf16-mixed")


class Strategy(ParallelStrategy):
    """Starts this rank as :func:`dtrain.init` does, with its arguments. The end of the script ends the run."""

    def __init__(self, experiment: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        # seed_everything() comes first, and the module after it: its weights are those of that seed.
        with isolate_rng() if "PL_GLOBAL_SEED" in os.environ else nullcontext():
            self._session = sessions.current() or sessions.init(experiment, **settings)
        if not _engines_actions:
            _engines_actions.update((number, _Action(number)) for number in (signal.SIGTERM, signal.SIGINT))
        super().__init__(cluster_environment=_Ranks(self._session))
        rank_zero_only.rank = fabric_rank_zero_only.rank = self._session.rank
        self._loaders: list[_Part] = []  # of training
        self._averages: averages.AveragedBackward | averages.LaterBackward | None = None
        self._is_later = False  # a fit() after the first one of this process
        self._clipping: tuple[Trainer, Any] | None = None  # what the Trainer was given
        self._broadcasts = 0  # so far
        self._signal = 0  # that a later fit() has received
        self._handlers: dict[int, Any] = {}  # that a later fit() puts back
        self._epoch: int | None = None
        self._waits_for_loader = False  # to begin
        self._metrics_before: dict[str, Any] = {}

    @property
    def root_device(self) -> torch.device:
        return self._session.device

    is_distributed = True  # where it is not, Lightning reduces no metrics

    #: By which modules divide their loaders' batch size where the strategy does not.
    num_processes = 1

    def setup(self, trainer: Trainer) -> None:
        if self._layer_sync is not None:
            raise ConfigError("Trainer(sync_batchnorm=True) is not supported by dtrain's strategy: leave it out")
        if trainer.precision not in _PRECISIONS:
            raise ConfigError(f"Trainer(precision={trainer.precision!r}) is not supported by dtrain's strategy: use one "
                              f"of {', '.join(_PRECISIONS)}, or optimizations.mixed_precision in dtrain's experiment")
        # Trainer(use_distributed_sampler=False): batches are divided, not the data.
        trainer._accelerator_connector.use_distributed_sampler = False
        assert self.lightning_module is not None
        for module in self.lightning_module.modules():  # torchmetrics would ask torch.distributed, which is not there
            if getattr(module, "dist_sync_fn", self) is None:
                module.dist_sync_fn, module.distributed_available_fn = self._gather, lambda: self.world_size > 1
        self._session._evaluated = self.lightning_module
        self._loaders, self._averages, self._epoch, self._is_later, self._waits_for_loader = [], None, None, False, False
        super().setup(trainer)

    def on_train_start(self) -> None:
        # Lightning has put a handler of its own in, by which each rank ends its loop by itself; and after a fit() before
        # this one it has put Python's back.
        if self._is_later:
            self._handlers = {number: signal.signal(number, self._note_signal) for number in _engines_actions}
        else:
            for action in _engines_actions.values():
                action.restore()

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    def setup_optimizers(self, trainer: Trainer) -> None:
        self._is_later = self._session._loader is not None
        super().setup_optimizers(trainer)
        if self._is_later:
            self._take_back(self.optimizers)
        if self._session._context._native.aggregation_frequency != 1:
            raise ConfigError("optimizations.aggregation_frequency is set: use Trainer(accumulate_grad_batches=…)")
        self._limit_length(trainer)
        if self._loaders:  # opened for configure_optimizers(), which has asked for their length
            self._begin(trainer)
        else:
            self._waits_for_loader = True

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        session = self._session
        if self._averages is None and session._has_begun and session._watch is not None and not self._is_later:
            self._put_back(checkpoint["optimizer_states"][0])
        else:
            super().load_optimizer_state_dict(checkpoint)

    def process_dataloader(self, dataloader: Any) -> Any:
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        is_training = trainer.training  # not while a validation within the training prepares its loaders
        part = _Part(dataloader, self._session, lambda: trainer.current_epoch if is_training else 0, is_training,
                     lambda: not self._is_later)
        if is_training:
            self._loaders.append(part)
            if self._waits_for_loader:
                self._begin(trainer)
        return part

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        epoch = trainer.current_epoch
        if trainer.fit_loop._skip_backward:  # StochasticWeightAveraging reads its batches once more
            return super().training_step(batch, *args, **kwargs)
        if self._epoch not in (None, epoch) and not self._is_later:
            self._session._end_epoch()
        self._epoch = epoch
        if isinstance(batch, Iterator):
            raise ConfigError("training_step(dataloader_iter) is not supported by dtrain's strategy, which has to know when a "
                              "batch begins: take a batch")
        samples, share = trainer.fit_loop._combined_loader.flattened[0].next_share()
        if self._averages is None:
            self._session._open_batch(samples, share)
            return super().training_step(batch, *args, **kwargs)
        self._averages.leave_all()
        self._averages.begin_batch(samples, share)
        with self._averages.active():
            return super().training_step(batch, *args, **kwargs)

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        if self._averages is not None:
            self._averages.enter()

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        if self._averages is not None:
            self._averages.leave()

    def block_backward_sync(self) -> AbstractContextManager[None]:  # type: ignore[override]
        # Averages of parts add up to the average: a step may come at any time.
        return nullcontext() if self._averages is not None else self._session.no_sync()

    def on_validation_start(self) -> None:
        self._metrics_before = dict(self.lightning_module.trainer.callback_metrics)  # type: ignore[union-attr]

    def on_validation_end(self) -> None:
        """Writes the metrics of a validation within the training to the run's metrics.jsonl, too."""
        trainer = self.lightning_module.trainer  # type: ignore[union-attr]
        new = {name: value for name, value in trainer.callback_metrics.items()
               if value is not self._metrics_before.get(name) and torch.as_tensor(value).numel() == 1}
        if new and not trainer.sanity_checking and trainer.state.fn == "fit" and not self._is_later:
            self._session.log_validation(new)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor) or self.world_size == 1:
            return tensor
        name = str(reduce_op).rpartition(".")[2].lower()
        name = {"avg": "mean"}.get(name, name)
        values = tensor if tensor.is_floating_point() else tensor.to(torch.float64 if name == "mean" else torch.int64)
        return self._session._context.all_reduce(values, name)

    def barrier(self, name: str | None = None) -> None:
        if self.world_size > 1:
            self._session.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self.world_size == 1:
            return obj
        context = self._session._context
        data = torch.tensor(list(pickle.dumps(obj)) if self.global_rank == src else [], dtype=torch.uint8)
        size = int(context.broadcast(torch.tensor([data.numel()]), src))
        data = context.broadcast(data if self.global_rank == src else data.new_zeros(size), src)
        pickled = bytes(data.tolist())
        # Unpickling executes what the bytes say, and what carries tensors between hosts may be MPI, which proves nothing. So they
        # must have the digest that rank src sends over the control plane, whose connections have all proven the run's secret.
        self._broadcasts += 1
        digest = hashlib.sha256(pickled).hexdigest()
        sent = context._native.gather_text(f"broadcast/{self._broadcasts}", digest if self.global_rank == src else "")[src]
        if not hmac.compare_digest(digest, sent):
            raise Error(f"broadcast() from rank {src}: the {size} bytes that arrived are not those that were sent, so they are not "
                        "unpickled; something between the hosts changes what MPI carries")
        return pickle.loads(pickled)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        if sync_grads and tensor.requires_grad:
            raise ConfigError("all_gather(sync_grads=True) is not supported by dtrain's strategy")
        return torch.stack(self._gather(tensor))

    def teardown(self) -> None:
        # trainer.test() may follow: the end of the script ends the run. The parameters are the engine's until then.
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
        if self._averages is not None:
            self._averages.leave_all()
        if self._clipping is not None:
            trainer, trainer.gradient_clip_val = self._clipping
            self._clipping = None
        self.precision_plugin.teardown()
        self.checkpoint_io.teardown()
        assert self.accelerator is not None
        self.accelerator.teardown()

    def _wrap_averages(self, module: LightningModule) -> None:
        averages.check(self.optimizers, module)
        if self._session._length[1] != "epochs":
            raise ConfigError("searcher.max_length counts optimizer steps of the engine, and these optimizers step by "
                              "themselves: give it in epochs, and the Trainer max_steps")
        with _trainable(module):
            self._averages = self._session._wrap_averages(module, divided(self._loaders[0]))
        if self.optimizers:
            self._averages.show_rate_of(self.optimizers[0])

    def _begin(self, trainer: Trainer) -> None:
        """Hands model, optimizer and the training loader to the session: as late as Lightning opens the loader."""
        module, session = self.lightning_module, self._session
        assert module is not None
        self._waits_for_loader = False
        if self._is_later:
            self._begin_later(module)
            return
        with _in_training_mode(module):
            if _steps_by_itself(trainer, self.optimizers):
                self._wrap_averages(module)
            else:
                session.wrap(module, self.optimizers[0], divided(self._loaders[0]), **self._take_clipping(trainer))
        if session._loop.batches > 0 or session._loop.epoch > 0:
            raise ConfigError("this run goes on from a checkpoint of dtrain, which has nothing of Lightning's loop: "
                              "start a new run, with trainer.fit(ckpt_path=…) and a checkpoint of ModelCheckpoint")

    def _put_back(self, values: dict[str, Any]) -> None:
        """The state of the engine's optimizer within the training: LearningRateFinder puts it back after its search."""
        optimizer, context = self.optimizers[0], self._session._loop.context
        optim.load_state_dict(optimizer, values)
        state = {name: (0, {of: torch.zeros_like(value) for of, value in tensors.items()})
                 for name, (_, tensors) in _native.read_optimizer_state(context).items()}
        _native.replace_optimizer_state(context, {**state, **optim.take_state(optimizer, self._session._context._names)})

    def _take_back(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Of optimizers that the engine had taken in the first fit(), methods and state are PyTorch's again."""
        session = self._session
        if session._averages is not None:
            session._averages.compare_calls()
        session._loop.drop_gradients()  # the fit() before may have been left within a batch
        session._loop.end_batch()
        for optimizer in optimizers:
            has_state = "state_dict" in vars(optimizer) and session._loop.state != ScriptLoop.State.ENDED
            values = optimizer.state_dict() if has_state else None
            patches.give_back(optimizer)
            if values is not None:
                optimizer.load_state_dict(values)

    def _begin_later(self, module: LightningModule) -> None:
        session = self._session
        averages.check(self.optimizers, module)
        session._context._native.info("trainer.fit() was called again: gradients are averaged after each backward, and "
                                      "optimizers are PyTorch's own. The profile, metrics.jsonl and the experiment's "
                                      "optimizations are those of the first fit().")
        self._signal = 0
        engines = getattr(session._averages, "engines", session._averages)
        self._averages = averages.LaterBackward(session._loop, session._context, module, engines, lambda: self._signal != 0,
                                                self._stop)
        session._averages = self._averages

    def _note_signal(self, number: int, frame: Any) -> None:
        self._signal = number

    def _stop(self) -> None:
        """All ranks are here, after a signal to at least one: the engine ends the run, as within its own training."""
        number = self._signal or signal.SIGTERM
        _engines_actions[number].restore()
        os.kill(os.getpid(), number)
        session = self._session
        assert isinstance(self._averages, averages.LaterBackward)
        session._averages = self._averages.engines
        session._loop.end_epoch()  # where no rank has a batch, a run that was asked to stop ends
        session._leave_if_over()

    def _take_clipping(self, trainer: Trainer) -> dict[str, float]:
        """The engine clips instead of the Trainer, which would clip gradients that are not averaged yet."""
        limit, trainer.gradient_clip_val = trainer.gradient_clip_val, None
        if not limit:
            return {}
        self._clipping = trainer, limit
        by_value = trainer.gradient_clip_algorithm == "value"
        return {"clip_gradient_value" if by_value else "clip_gradient_norm": float(limit)}

    def _limit_length(self, trainer: Trainer) -> None:
        """The run has the shorter one of the Trainer's length and the experiment's."""
        count, unit = self._session._length
        loop = trainer.fit_loop
        if unit == "epochs":
            if count >= EPOCHS_OF_SCRIPTS:
                return
            loop.max_epochs = count if loop.max_epochs in (None, -1) else min(count, loop.max_epochs)
            return
        batches = count if unit == "batches" else -(-count // self._session._context.global_batch_size)
        loop.epoch_loop.max_steps = batches if loop.max_steps == -1 else min(batches, loop.max_steps)

    def _gather(self, tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        """The tensors of all ranks, which may differ in their shapes."""
        context = self._session._context
        tensor = tensor.detach()
        values = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        shapes = [shape.tolist() for shape in context.all_gather(torch.tensor(tensor.shape, dtype=torch.int64))] \
            if tensor.dim() else [[]] * self.world_size
        padded = values.new_zeros([max(sizes) for sizes in zip(*shapes)])
        padded[tuple(slice(size) for size in tensor.shape)] = values
        parts = context.all_gather(padded)
        return [part[tuple(slice(size) for size in shape)].to(tensor.dtype) for part, shape in zip(parts, shapes)]


class _Part:
    """A loader whose batches are this rank's part of those of the loader that it stands for, whose attributes it has."""

    def __init__(self, loader: Any, session: sessions.Session, epoch: Callable[[], int], is_training: bool,
                 is_of_engine: Callable[[], bool]) -> None:
        self._loader = loader
        self._session = session
        self._is_training = is_training
        self._is_of_engine = is_of_engine  # whether the engine trains on its batches
        # Every rank takes part in every batch of training, because Lightning counts them on each.
        self._source = Source(loader, session.rank, session.world_size, session._context._native.seed,
                              whole_batches=is_training)
        self._epoch = epoch
        self._shares: deque[tuple[int, float]] = deque()

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        self._shares.clear()
        for batch in self._source.epoch(self._epoch(), 0):
            self._shares.append((self._source.count, self._source.share))
            yield batch
            if self._is_training and self._is_of_engine():  # the loader's time is that of no callback
                self._session._loop.end_batch()
                self._session._leave_if_over()

    def next_share(self) -> tuple[int, float]:
        """Samples, and what their mean counts, of the next batch, which Lightning may have fetched a while ago."""
        return self._shares.popleft() if self._shares else (1, 1.0)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of a copy, which has nothing yet
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Action:
    """What a signal does. signal.getsignal() knows no handler but those of Python."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._action = ctypes.create_string_buffer(1024)  # a struct sigaction, which is smaller
        self._libc.sigaction(number, None, self._action)

    def restore(self) -> None:
        self._libc.sigaction(self._number, self._action, None)


#: What the engine does about signals, by their numbers. Lightning puts other handlers in, and its teardown Python's.
_engines_actions: dict[int, _Action] = {}


class _Ranks(ClusterEnvironment):
    """Who this rank is, for Lightning: dtrain, torchrun or mpirun has started it."""

    creates_processes_externally = True
    main_address = ""
    main_port = 0

    def __init__(self, session: sessions.Session) -> None:
        self._session = session
        host = zlib.crc32(socket.gethostname().encode())
        hosts = [int(other) for other in session._context.all_gather(torch.tensor([host]))]
        self._local_rank = hosts[:session.rank].count(host)
        self._node_rank = list(dict.fromkeys(hosts)).index(host)

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._session.world_size

    def set_world_size(self, size: int) -> None: ...

    def global_rank(self) -> int:
        return self._session.rank

    def set_global_rank(self, rank: int) -> None: ...

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return self._node_rank


def _steps_by_itself(trainer: Trainer, optimizers: list[torch.optim.Optimizer]) -> bool:
    """Whether the module or a callback does more than step the one optimizer that it was given in the beginning."""
    module = trainer.lightning_module
    return (not module.automatic_optimization or len(optimizers) != 1
            or is_overridden("configure_gradient_clipping", module) or is_overridden("optimizer_step", module)
            or _needs_closure(optimizers[0])
            or any(isinstance(callback, BaseFinetuning) for callback in trainer.callbacks))  # adds parameter groups


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step() calls backward() itself, by a closure without which it cannot be called."""
    parameters = inspect.signature(optimizer.step).parameters.values()
    return any(parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
               for parameter in parameters)


@contextmanager
def _in_training_mode(module: LightningModule) -> Iterator[None]:
    """The engine would call train() of a module in evaluation mode, and Lightning leaves it as the script has put it."""
    mode, module.training = module.training, True
    try:
        yield
    finally:
        module.training = mode


@contextmanager
def _trainable(module: LightningModule) -> Iterator[None]:
    """The engine takes the parameters that are trainable here: a callback may thaw the others later."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad
              and parameter.is_floating_point()]
    try:
        for parameter in frozen:
            parameter.requires_grad = True
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


# Trainer(strategy="dtrain"), and LightningCLI's --trainer.strategy=dtrain, in a script that imports this module.
StrategyRegistry.register("dtrain", Strategy, description="dtrain's engine")
