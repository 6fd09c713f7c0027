"""Loops of many kinds: each is run with dtrain, and, by run_plain(), as plain PyTorch in one process.

The hyperparameter `what` names the kind. `death`: after so many steps the last rank kills itself, once.
"""
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import torch
from steps_public import PUBLIC
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

BATCH = 12
EPOCHS = 3


class Plain:
    """What a script asks of a session, in one process."""
    rank, world_size, is_main, batches_done, epochs_done = 0, 1, True, 0, 0

    def wrap(self, model, optimizer, *others):
        return model, optimizer, *others

    def no_sync(self):
        return contextlib.nullcontext()

    def mean(self, value, weight=1):
        return float(value)

    def keep(self, **objects):
        pass


class Job:
    def __init__(self, session, batches=63):
        self.session = session
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(batches, 8, generator=generator, dtype=torch.float64)
        self.targets = torch.randn(batches, 3, generator=generator, dtype=torch.float64)
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 3)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05, weight_decay=0.1)
        self.loader = DataLoader(TensorDataset(self.inputs, self.targets), batch_size=BATCH)
        self.steps = 0
        self.notes = []
        self.after_step = lambda: None

    def wrap(self, *schedulers):
        self.model, self.optimizer, self.loader, *rest = self.session.wrap(self.model, self.optimizer, self.loader, *schedulers)
        self.steps = self.session.batches_done
        return rest

    def loss(self, batch):
        return functional.mse_loss(self.model(batch[0]), batch[1])

    def step(self):
        self.optimizer.step()
        self.steps += 1
        self.after_step()

    def train(self, batch):
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.step()

    def clip(self, most):
        """For wrap(): clipping by the norm of all ranks' gradients."""
        return {} if isinstance(self.session, Plain) else {"clip_gradient_norm": most}

    def clip_if_plain(self, most):
        if isinstance(self.session, Plain):
            nn.utils.clip_grad_norm_(self.model.parameters(), most)

    def counted(self):
        return enumerate(self.loader, getattr(self.loader, "first_batch", 0))


def ordinary(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.train(batch)


def break_at_the_top(job):
    job.wrap()
    for _ in range(EPOCHS):
        for number, batch in job.counted():
            if number == 2:
                break
            job.train(batch)


def break_at_the_bottom(job):
    job.wrap()
    for _ in range(EPOCHS):
        for number, batch in job.counted():
            job.train(batch)
            if number == 2:
                break
    job.train(batch)  # after the loop, too


def peek(job):
    job.wrap()
    job.notes.append(list(next(iter(job.loader))[0].shape[1:]))
    before = job.model[0].weight.detach().clone()
    for _ in range(EPOCHS):
        for batch in job.loader:
            if job.steps == 0 and job.session.batches_done == 0:
                job.notes.append(torch.equal(before, job.model[0].weight))
            job.train(batch)


def zip_with_something_shorter(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch, _ in zip(job.loader, range(getattr(job.loader, "first_batch", 0), 3)):
            job.train(batch)


def passes_that_only_evaluate(job):
    job.wrap()
    for _ in range(EPOCHS):
        with torch.no_grad():
            for batch in job.loader:
                job.loss(batch)
        for batch in job.loader:
            job.train(batch)
        for batch in job.loader:
            job.loss(batch)


def an_iterator_without_end(job):
    job.wrap()
    assert job.session.epochs_done in (job.steps // 6, (job.steps - 1) // 6)  # the loader begins where the run goes on
    batches = iter(job.loader)
    while job.steps < 17:
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(job.loader)
            batch = next(batches)
        job.train(batch)


def without_a_loader(job):
    session = job.session
    job.model, job.optimizer, scheduler = session.wrap(
        job.model, job.optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(job.optimizer, 20))
    size = BATCH // session.world_size
    for step in range(session.batches_done, 20):
        first = step * 7 % 40 + session.rank * size
        job.optimizer.zero_grad()
        functional.mse_loss(job.model(job.inputs[first:first + size]), job.targets[first:first + size]).backward()
        job.step()
        scheduler.step()


def batches_left_out(job):
    job.wrap()
    for _ in range(EPOCHS):
        for number, batch in job.counted():
            if number % 3 == 1:
                continue
            job.train(batch)


def steps_left_out(job):
    job.wrap()
    for _ in range(EPOCHS):
        for number, batch in job.counted():
            job.optimizer.zero_grad()
            job.loss(batch).backward()
            if number == 1:
                continue
            job.step()


def two_steps_for_a_batch(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.train(batch)
            job.train(batch)


def accumulation(job):
    job.wrap()
    for _ in range(EPOCHS):
        job.optimizer.zero_grad()
        for number, batch in job.counted():
            is_last = number % 2 == 1
            with contextlib.nullcontext() if is_last else job.session.no_sync():
                (job.loss(batch) / 2).backward()
            if is_last:
                job.step()
                job.optimizer.zero_grad()


def a_closure(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            def closure():
                job.optimizer.zero_grad()
                loss = job.loss(batch)
                loss.backward()
                return loss
            job.optimizer.step(closure)
            job.steps += 1
            job.after_step()


def a_second_model_of_the_script(job):
    torch.manual_seed(9)
    other = nn.Linear(3, 1).double()
    steps_of_other = torch.optim.SGD(other.parameters(), lr=0.1)
    job.session.keep(other=other)
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            steps_of_other.zero_grad()
            other(torch.ones(2, 3, dtype=torch.float64)).square().mean().backward()
            steps_of_other.step()
            job.train(batch)
    job.notes.append([round(value, 9) for value in other.weight.detach().flatten().tolist()])


def zero_grad_at_the_end(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.loss(batch).backward()
            job.step()
            job.optimizer.zero_grad()


def several_losses(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.optimizer.zero_grad()
            out = job.model(batch[0])
            torch.autograd.backward([functional.mse_loss(out, batch[1]), out.square().mean()])
            job.step()


def a_gradient_of_the_output(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.optimizer.zero_grad()
            out = job.model(batch[0])
            out.backward(gradient=torch.full_like(out, 1 / out.numel()))
            job.step()


def schedulers(job):
    each, = job.wrap(torch.optim.lr_scheduler.StepLR(job.optimizer, 2, 0.7))
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.train(batch)
        each.step()
    job.notes.append(job.optimizer.param_groups[0]["lr"])


def a_plateau(job):
    plateau, = job.wrap(torch.optim.lr_scheduler.ReduceLROnPlateau(job.optimizer, patience=0, factor=0.5))
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.train(batch)
        job.model.eval()
        with torch.no_grad():
            worse = functional.mse_loss(job.model(job.inputs[:20]), job.targets[:20]) + job.session.rank + job.steps
        job.model.train()
        plateau.step(job.session.mean(worse))
    job.notes.append(job.optimizer.param_groups[0]["lr"])


def hooks(job):
    job.wrap()
    job.optimizer.register_step_pre_hook(lambda *_: job.notes.append("before"))
    job.optimizer.register_step_post_hook(lambda *_: job.notes.append("after"))
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.train(batch)
    job.notes = job.notes[-4:]


def steps_without_gradients(job):
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.optimizer.zero_grad()
            job.optimizer.step()
            job.train(batch)
        job.optimizer.zero_grad()
        job.optimizer.step()


def nadam(job):
    job.optimizer = torch.optim.NAdam(job.model.parameters(), lr=0.01)
    break_at_the_top(job)


def checkpointing_within_backward(job):
    from torch.utils.checkpoint import checkpoint
    job.wrap()
    for _ in range(EPOCHS):
        for batch in job.loader:
            job.optimizer.zero_grad()
            hidden = checkpoint(job.model[0], batch[0].requires_grad_(), use_reentrant=True)
            functional.mse_loss(job.model[2](torch.tanh(hidden)), batch[1]).backward()
            job.step()


def left_on_the_way(job):
    """A loop from 0 that ends where a run goes on: its code of epochs that are over runs again."""
    job.wrap()
    for epoch in range(EPOCHS):
        for batch in job.loader:
            job.train(batch)
            time.sleep(0.03)  # checkpoints keep up
        if epoch == 0 and job.session.batches_done > 6:
            break


KINDS = {one.__name__: one for one in (
    ordinary, break_at_the_top, break_at_the_bottom, peek, zip_with_something_shorter, passes_that_only_evaluate,
    an_iterator_without_end, without_a_loader, batches_left_out, steps_left_out, two_steps_for_a_batch, accumulation, a_closure,
    a_second_model_of_the_script, zero_grad_at_the_end, several_losses, a_gradient_of_the_output, schedulers, a_plateau, hooks,
    steps_without_gradients, nadam, checkpointing_within_backward, *PUBLIC)}


def run_plain(what):
    """The weights by name, the number of steps, and what the loop has noted."""
    torch.set_num_threads(1)
    job = Job(Plain())
    KINDS[what](job)
    return {name: one.detach().numpy() for name, one in job.model.named_parameters()}, job.steps, job.notes


def main():
    import dtrain

    session = dtrain.init()
    job = Job(session)
    death, was_there = session.hyperparameters["death"], session.run_dir / "was_killed"

    def after_step():
        if not death or job.steps != death or was_there.exists():
            return
        session.save()
        if session.rank == session.world_size - 1:
            was_there.touch()
            while not list(Path(session.run_dir).glob("checkpoints/step-*/manifest.json")):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    job.after_step = after_step
    {**KINDS, "left_on_the_way": left_on_the_way}[session.hyperparameters["what"]](job)
    if session.is_main:
        done = session.batches_done
        session.close()
        (session.run_dir / "result.json").write_text(json.dumps({"steps": done, "notes": job.notes}))


if __name__ == "__main__":
    main()
