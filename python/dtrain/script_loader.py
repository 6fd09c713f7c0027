"""The passes of a script over its loader, and what checkpoints have of a script."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _native, optim
from .sample_division import Source

if TYPE_CHECKING:
    from .session import Session

_State = _native.ScriptLoop.State
_STEPS_TO_NOTICE = 3  # in which a batch was always taken before the one before it was trained


class _Pass:
    """An iteration of the loader that is under way."""

    def __init__(self, number: int, given: int) -> None:
        self.number = number
        self.given = given  # batches, those included that a run before has trained
        self.taken = 0  # batches in this process
        self.steps = 0  # of the optimizer in this process
        self.ahead = 0  # of them the first ones, if each came after one more batch was taken
        self.was_left = False  # by `break`

    def note_step(self) -> str:
        """What a run that goes on from a checkpoint would leave out; empty: nothing."""
        self.steps += 1
        self.ahead += self.ahead == self.steps - 1 and self.taken == self.steps + 1
        if self.ahead == _STEPS_TO_NOTICE:
            return ("the script takes each batch from the loader before the one before it is trained: a run that goes on from a "
                    "checkpoint leaves out the batch that was taken and not trained; let the loader read ahead (num_workers, "
                    "prefetch_factor) instead")
        if self.steps > self.taken and not self.was_left:
            return ("the script makes several steps with one batch of the loader: a run that goes on from a checkpoint between them "
                    "leaves out the later ones")
        return ""


class ScriptLoader:
    """The training loader. A pass over it in which the optimizer has stepped is an epoch of the run; any other (a look at the
    first batch, an evaluation) trains nothing and counts for nothing. It has the attributes of the loader that was wrapped.
    """

    def __init__(self, session: Session, source: Source, loader: Any) -> None:
        self._session = session
        self._source = source
        self._wrapped = loader
        self._over: list[bool] = []  # of each pass that is over: whether it was trained
        self._before: list[bool] = []  # the same of the run that this one goes on from
        self._resumed = 0  # batches that it had taken of the pass after those
        self._ends_epoch = False  # it had left the last of them, and the engine's epoch is still open
        self._pass: _Pass | None = None
        self._has_arrived = False  # at the pass in which the run goes on
        self._has_warned = False
        self._steps_elsewhere = False  # the optimizer has stepped while no pass was under way

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    @property
    def first_batch(self) -> int:
        """How many batches the next pass leaves out, because the run has trained them before it was stopped: 0 in every pass
        but the first one after that. ``for number, batch in enumerate(loader, loader.first_batch)`` counts on."""
        number = len(self._over) + (self._pass is not None)
        return self._resumed if number == len(self._before) else 0

    def __iter__(self) -> Iterator[Any]:
        session, loop = self._session, self._session._loop
        self.close()
        number, epoch = len(self._over), sum(self._over)
        if loop.state == _State.ENDED or session._is_long_enough(epoch):
            return  # the run has reached its length
        skip = 0
        if number < len(self._before):
            if self._before[number]:
                self._over.append(True)
                return
        elif number == len(self._before):
            skip, self._has_arrived = self._resumed, True
            session._restore_state()
            if self._ends_epoch:
                self._ends_epoch = False
                session._end_epoch()
        self._pass = mine = _Pass(number, skip)
        try:
            yield from self._batches(mine, epoch)
        except GeneratorExit:
            mine.was_left = True  # what is due is done at the next call: an error could not be raised here
            raise

    def _batches(self, mine: _Pass, epoch: int) -> Iterator[Any]:
        session, loop = self._session, self._session._loop
        batches = iter(self._source.epoch(epoch, mine.given))
        while True:
            loop.expect_batch(mine.given)
            session._leave_if_over()
            if session._is_long_enough(epoch):
                # Within an epoch, which is not over: a longer run goes on here.
                if self._pass is mine:
                    self._before, self._resumed, self._pass = list(self._over), mine.given, None
                return
            try:
                batch = next(batches)
            except StopIteration:
                break
            place = -1 if self._source.is_divided else mine.number << 32 | mine.given
            mine.given += 1
            mine.taken += 1
            session._open_batch(self._source.count, self._source.share, place)
            yield batch
            # Now the script has stepped its schedulers: the batch may be saved.
            loop.end_batch()
            session._leave_if_over()
        if self._pass is mine:
            self.close()

    def close(self) -> None:
        """Ends the pass under way: an epoch, if it was trained. Collective."""
        self._session._loop.end_batch()
        self._session._leave_if_over()
        mine = self._pass
        if mine is None:
            return
        was_trained = mine.steps > 0 or (mine.number == len(self._before) and self._resumed > 0)
        if was_trained:
            self._session._end_epoch()
        self._over.append(was_trained)
        self._pass = None

    def epochs_done(self) -> int:
        """Passes that are over and were trained. The script begins where the run goes on: its first pass is not one of the run
        before."""
        if not self._over and self._pass is None:
            self._over = list(self._before)
        return sum(self._over)

    def was_left_on_the_way(self) -> bool:
        """The script has begun to pass over epochs that were trained before, and has not come to where the run goes on."""
        over, before = len(self._over), len(self._before)
        if self._pass is not None or self._has_arrived or over == 0 or self._session._is_long_enough(sum(self._over)):
            return False
        return over < before or (over == before and self._resumed > 0)

    def compare(self) -> None:
        """Before a backward(): the ranks compare what their loaders give, once an epoch. Collective."""
        if self._pass is not None:
            self._source.compare()

    def note_step(self) -> None:
        """The optimizer has stepped."""
        mine = self._pass
        if mine is None:
            self._steps_elsewhere = True
        elif (left_out := mine.note_step()) and not self._has_warned:
            self._has_warned = True
            if self._session.is_main:
                self._session._context._native.warn(left_out)

    def state(self) -> dict[str, Any]:
        mine, over = self._pass, list(self._over)
        ends_epoch = mine is not None and mine.was_left and mine.steps > 0
        if mine is not None and mine.was_left:
            over.append(ends_epoch)
        given = 0 if mine is None or mine.was_left else mine.given
        if mine is None and len(over) == len(self._before):
            given = self._resumed
        return {"passes": over, "given": given, "ends_epoch": ends_epoch, "steps_elsewhere": self._steps_elsewhere}

    def load(self, state: dict[str, Any] | None) -> None:
        """Where the run goes on. None: from the checkpoint of another program."""
        loop = self._session._loop
        if state is None or "passes" not in state:  # or of an earlier version, whose every pass was an epoch
            self._before = [True] * loop.epoch
            given = None if state is None else state.get("given")
            self._resumed = loop.skipped_batches if given is None or loop.skipped_batches == 0 else given
            return
        self._before, self._resumed, self._ends_epoch = list(state["passes"]), state["given"], state["ends_epoch"]
        if state["steps_elsewhere"]:
            self._steps_elsewhere = True
            self._session._context._native.warn(
                f"the run goes on after batch {loop.batches}, and its script has stepped outside of its passes over the loader: "
                "the script has to go on by session.batches_done (docs/python.md)")


class ScriptState:
    """What a checkpoint has of a script besides model, optimizer and position: its schedulers, learning rates, the objects of
    keep(), and an optimizer that steps by itself (``own_steps``)."""

    def __init__(self, session: Session, optimizer: torch.optim.Optimizer, schedulers: list[Any], own_steps: bool) -> None:
        self._session = session
        self._optimizer = optimizer
        self._schedulers = schedulers
        self._own_steps = own_steps
        self._restored: Any = None  # of a checkpoint that the run goes on from, until the script is there
        self._is_settled = False  # the script has come to where the run goes on

    def save(self) -> Any:
        if self._restored is not None and not self._is_settled:  # nothing has changed
            return self._restored
        loader = self._session._loader
        return {"schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
                "optimizer": self._optimizer.state_dict() if self._own_steps else None,
                "rates": [optim.plain_number(group["lr"]) for group in self._optimizer.param_groups],
                **(loader.state() if loader is not None else {"given": 0}),
                "kept": {name: kept.state_dict() for name, kept in self._session._kept.items()},
                "scheduler_kinds": optim.kinds_of(self._schedulers), "optimizer_kinds": optim.kinds_of([self._optimizer])}

    def load(self, state: Any) -> None:
        self._restored = state

    def begin(self) -> None:
        """In wrap(): what the script reads before its loop is as it was saved."""
        session, state = self._session, self._restored
        if session._loop.batches == 0:
            return
        if session._loader is not None:
            session._loader.load(state)
        if self._own_steps:
            has_one = state is not None and state["optimizer"] is not None
            if not has_one or state.get("optimizer_kinds") not in (None, optim.kinds_of([self._optimizer])):
                raise optim.no_state_of([self._optimizer])
            optim.load_own_state(self._optimizer, state["optimizer"])
        self._load_schedulers(warns=session._loader is None)
        self.load_kept(session._kept)

    def settle(self, reloads: bool) -> None:
        """The script has come to where the run goes on. ``reloads``: what it has stepped on the way there does not count."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._session._loop.batches > 0 and reloads:
            self._load_schedulers(warns=True)
            self.load_kept(self._session._kept)
            self._warn_of_kept()
        self._restored = None

    def load_kept(self, objects: dict[str, Any]) -> None:
        if self._restored is None:
            return
        saved = self._restored.get("kept", {})
        for name, kept in objects.items():
            if name in saved:
                kept.load_state_dict(saved[name])

    def _load_schedulers(self, warns: bool) -> None:
        state, warn, kept = self._restored, self._session._context._native.warn, self._session._kept
        if state is None:
            anew = [*(["the schedulers"] if self._schedulers else []), *(["the objects of session.keep()"] if kept else [])]
            if anew and warns:
                warn(f"{' and '.join(anew)} of the script begin anew, because the checkpoint of another program has no state of "
                     "them: set them to where they should be before the loop")
            return
        other = optim.other_schedulers(self._schedulers, state)
        if other and warns:
            warn(f"{other}: those of the script begin anew; step them to where they should be before the loop")
        for scheduler, values in zip(self._schedulers, [] if other else state["schedulers"]):
            scheduler.load_state_dict(values)
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                optim.set_rate(group, rate)
        rates = state.get("rates", [])
        if not other and len(rates) == len(self._optimizer.param_groups):
            for group, rate in zip(self._optimizer.param_groups, rates):
                optim.set_rate(group, rate)

    def _warn_of_kept(self) -> None:
        if self._restored is None:
            return
        missing = ", ".join(sorted(self._session._kept.keys() ^ self._restored.get("kept", {}).keys()))
        if missing:
            self._session._context._native.warn(
                f"session.keep(): the checkpoint and the script do not have the same names ({missing}); "
                "what only one of them has begins anew, or is left out")
