"""The steps that dtrain.step_hooks finds in loops of many kinds, in place of a rank with a record that notes them.

    steps.py BUILD/bin [Steps.test]
"""
import contextlib
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import group_ranks
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

BATCHES = 6
DATA = TensorDataset(torch.arange(8.0 * BATCHES).view(-1, 1), torch.ones(8 * BATCHES, 1))
ORDINARY = ["LOADER", "FORWARD", "BACKWARD", "OTHER", "UPDATE", "OTHER"]


class Record:
    """What StepHooks calls of UnchangedScript."""

    stop_reason = ""

    def __init__(self) -> None:
        from dtrain._native import UnchangedScript
        self.steps: list[tuple[int, list[str]]] = []  # samples and phases of each
        self._now = UnchangedScript.Phase.OTHER
        self._phases: list[str] | None = None

    def begin_step(self, phase: Any) -> None:
        self._now, self._phases = phase, [phase.name]

    def switch_to(self, phase: Any) -> Any:
        before, self._now = self._now, phase
        if self._phases is not None and self._phases[-1] != phase.name:
            self._phases.append(phase.name)
        return before

    def end_step(self, samples: int, loss: float | None, learning_rate: float) -> None:
        self.steps.append((samples, self._phases or []))
        self._phases = None

    def update_plan(self, key: str, value: dict) -> None:
        pass

    def abandon(self) -> None:
        pass


def recorded(rank: int, loop: Callable[[], None]) -> list[tuple[int, list[str]]]:
    from dtrain.step_hooks import StepHooks
    record = Record()
    StepHooks(record, lambda reason: None)
    loop()
    return record.steps


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4), DataLoader(DATA, batch_size=8)


def ordinary() -> None:
    model, optimizer, loader = parts()
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        with torch.no_grad():
            for inputs, _ in DataLoader(DATA, batch_size=4):
                model(inputs)
        for inputs, _ in DataLoader(DATA, batch_size=4):  # without no_grad() around the loader
            model(inputs)


def accumulating() -> None:
    model, optimizer, loader = parts()
    for number, (inputs, targets) in enumerate(loader):
        nn.functional.mse_loss(model(inputs), targets).backward()
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def with_closures() -> None:
    model, _, loader = parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for inputs, targets in loader:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)


def adversarial() -> None:
    model, optimizer, loader = parts()
    other = nn.Linear(1, 1)
    others_optimizer = torch.optim.SGD(other.parameters(), lr=1e-4)
    for inputs, _ in loader:
        model(inputs).mean().backward()
        optimizer.step()
        other(inputs).mean().backward()
        others_optimizer.step()


def without_loader() -> None:
    model, optimizer, _ = parts()
    for _ in range(BATCHES):
        model(torch.ones(8, 1)).mean().backward()
        optimizer.step()


def scaled() -> None:
    model, optimizer, loader = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number, (inputs, _) in enumerate(loader):
        optimizer.zero_grad()
        scaler.scale(model(inputs).mean() * (float("inf") if number == 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.ones(4 * BATCHES, 1)


def streaming() -> None:
    model, optimizer, _ = parts()
    for inputs in DataLoader(Stream(), batch_size=8, num_workers=2):
        model(inputs).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def of_two_loaders() -> None:
    model, optimizer, loader = parts()
    for (inputs, targets), _ in zip(loader, DataLoader(DATA, batch_size=8)):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_batch_ahead() -> None:
    """As Accelerate's loaders read."""
    model, optimizer, loader = parts()

    def ahead() -> Iterator[Any]:
        batches = iter(loader)
        batch = next(batches)
        with contextlib.suppress(StopIteration):
            while True:
                following = next(batches)
                yield batch
                batch = following
        yield batch

    for inputs, targets in ahead():
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


class Outer(torch.optim.SGD):
    """An optimizer whose step() calls another one's, as ZeroRedundancyOptimizer's does."""

    def step(self, closure: Any = None) -> None:
        self.inner.step()


def nested() -> None:
    model, optimizer, loader = parts()
    outer = Outer(model.parameters(), lr=1e-4)
    outer.inner = optimizer
    for inputs, targets in loader:
        nn.functional.mse_loss(model(inputs), targets).backward()
        outer.step()
        outer.zero_grad()


class Steps(unittest.TestCase):
    def steps_of(self, loop: Callable[[], None], count: int = BATCHES, samples: int = 8) -> list[list[str]]:
        steps = group_ranks.run(1, recorded, loop, backend=None)[0]
        self.assertEqual([found for found, _ in steps], [samples] * count, steps)
        return [phases for _, phases in steps]

    def test_evaluations_are_no_steps(self):
        self.assertEqual(self.steps_of(ordinary, 2 * BATCHES), [ORDINARY] * 2 * BATCHES)

    def test_several_backward_passes(self):
        self.assertEqual(self.steps_of(accumulating, BATCHES // 2, 16), [ORDINARY[:4] + ORDINARY] * (BATCHES // 2))

    def test_closures_compute_within_the_update(self):
        for phases in self.steps_of(with_closures):
            self.assertEqual(phases[:6], ["LOADER", "FORWARD", "UPDATE", "FORWARD", "BACKWARD", "OTHER"])
            self.assertEqual(phases[-2:], ["UPDATE", "OTHER"])

    def test_the_last_of_several_optimizers_ends_the_step(self):
        steps = self.steps_of(adversarial)
        self.assertEqual(steps[0], ORDINARY)  # until it is known that another one follows
        for phases in steps[1:]:
            self.assertEqual(phases.count("BACKWARD"), 2)
            self.assertEqual(phases.count("UPDATE"), 2)

    def test_without_a_loader(self):
        steps = self.steps_of(without_loader, samples=0)
        self.assertEqual(steps[1:], [["FORWARD", "BACKWARD", "OTHER", "UPDATE", "OTHER"]] * (BATCHES - 1))

    def test_an_update_that_a_scaler_leaves_out(self):
        self.steps_of(scaled)

    def test_workers_of_a_stream(self):
        self.assertEqual(self.steps_of(streaming), [ORDINARY] * BATCHES)

    def test_two_loaders(self):
        self.assertEqual(self.steps_of(of_two_loaders), [["LOADER", "FORWARD", *ORDINARY]] * BATCHES)

    def test_a_loader_that_is_one_batch_ahead(self):
        self.steps_of(one_batch_ahead)

    def test_an_optimizer_within_another(self):
        self.assertEqual(self.steps_of(nested), [ORDINARY] * BATCHES)

    def test_iterators_are_left_alone(self):
        from dtrain.step_hooks import samples_of
        batch = iter([torch.ones(3)])
        self.assertEqual(samples_of(batch), 0)
        self.assertEqual(len(list(batch)), 1)
        self.assertEqual(samples_of({"text": ["a"], "x": torch.ones(3, 2)}), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
