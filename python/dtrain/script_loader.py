"""The loop over epochs of a script, and its place in checkpoints."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _native, optim
from .data import Source, samples_of

if TYPE_CHECKING:
    from .session import Session

_State = _native.ScriptLoop.State


class ScriptLoader:
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
        given = session._script_state.restore() if session._script_state is not None else None
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


class ScriptState:
    """What a checkpoint has of a script besides model, optimizer and position: its schedulers, and an optimizer that steps
    by itself (``own_steps``)."""

    def __init__(self, session: Session, optimizer: torch.optim.Optimizer, schedulers: list[Any], own_steps: bool) -> None:
        self._session = session
        self._optimizer = optimizer
        self._schedulers = schedulers
        self._own_steps = own_steps
        self._restored: Any = None  # of a checkpoint that the run goes on from, until the loop is there
        self._is_settled = False  # restore() was called

    def save(self) -> Any:
        if self._restored is not None:  # the script has not come to where the run goes on: nothing has changed
            return self._restored
        own = self._optimizer.state_dict() if self._own_steps else None
        loader = self._session._loader
        return {"schedulers": [scheduler.state_dict() for scheduler in self._schedulers], "optimizer": own,
                "given": loader.given if loader is not None else 0,
                "kept": {name: one.state_dict() for name, one in self._session._kept.items()},
                "scheduler_kinds": optim.kinds_of(self._schedulers), "optimizer_kinds": optim.kinds_of([self._optimizer])}

    def load(self, state: Any) -> None:
        self._restored = state

    def check(self) -> None:
        """An optimizer that steps by itself has its state in that of the script alone."""
        if not self._own_steps or self._session._loop.batches == 0:
            return
        state = self._restored
        has_one = state is not None and state["optimizer"] is not None
        if not has_one or state.get("optimizer_kinds") not in (None, optim.kinds_of([self._optimizer])):
            raise optim.no_state_of([self._optimizer])

    def restore(self) -> int | None:
        """Before an epoch: once the loop is where the run goes on, because what it has stepped on the way there does not
        count. Returns how many batches of the epoch the loader had given: several for each step where gradients were
        accumulated."""
        if self._is_settled:
            return None
        self._is_settled = True
        state, self._restored = self._restored, None
        warn, kept = self._session._context._native.warn, self._session._kept
        if state is None:
            anew = [*(["the schedulers"] if self._schedulers else []), *(["the objects of session.keep()"] if kept else [])]
            if anew and self._session._loop.batches > 0:
                warn(f"{' and '.join(anew)} of the script begin anew, because the checkpoint of another program has no state of "
                     "them: set them to where they should be before the loop")
            return None
        if self._own_steps:
            optim.load_own_state(self._optimizer, state["optimizer"])
        other = optim.other_schedulers(self._schedulers, state)
        if other:
            warn(f"{other}: those of the script begin anew; step them to where they should be before the loop")
        for scheduler, values in zip(self._schedulers, [] if other else state["schedulers"]):
            scheduler.load_state_dict(values)
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                group["lr"] = rate
        saved = state.get("kept", {})
        for name, one in kept.items():
            if name in saved:
                one.load_state_dict(saved[name])
        missing = ", ".join(sorted(kept.keys() ^ saved.keys()))
        if missing:
            warn(f"session.keep(): the checkpoint and the script do not have the same names ({missing}); "
                 "what only one of them has begins anew, or is left out")
        given: int | None = state.get("given")
        return given
