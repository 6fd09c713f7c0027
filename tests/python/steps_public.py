"""Loops in the manner of public scripts: pytorch/examples, the no-trainer scripts of transformers, timm's train.py, nanoGPT.

Each gets a steps_script.Job. Nothing is drawn at random and no layer looks at its batch as a whole, so that a run on several ranks
has one process's values.
"""
import collections
import contextlib
import copy
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 63, 12


def images(job):
    """16 pictures of 1x6x6, and their classes."""
    pictures = job.inputs[:, :6].unsqueeze(1) * job.inputs[:, 2:8].unsqueeze(2)
    return pictures.unsqueeze(1), job.inputs.argmax(1) % 4


class Kept:
    """Numbers and tensors of a script's own."""

    def __init__(self, **values):
        self.values = values

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, values):
        self.values = dict(values)


class Convolutions(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3)
        self.norm = nn.GroupNorm(2, 6) if norm else nn.Identity()
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        x = functional.relu(self.norm(self.conv1(x)))
        return functional.log_softmax(self.out(functional.relu(self.conv2(x)).flatten(1)), dim=1)


def mnist(job):
    """pytorch/examples, mnist: Adadelta, StepLR with each epoch, a test after it."""
    pictures, labels = images(job)
    torch.manual_seed(5)
    job.model = Convolutions().double()
    job.optimizer = torch.optim.Adadelta(job.model.parameters(), lr=1.0)
    job.loader = DataLoader(TensorDataset(pictures, labels), batch_size=BATCH)
    scheduler, = job.wrap(torch.optim.lr_scheduler.StepLR(job.optimizer, step_size=1, gamma=0.7))
    for _ in range(3):
        job.model.train()
        for data, target in job.loader:
            job.optimizer.zero_grad()
            functional.nll_loss(job.model(data), target).backward()
            job.step()
        job.model.eval()
        with torch.no_grad():
            right = (job.model(pictures).argmax(1) == labels).double().mean()
        scheduler.step()
    job.notes = [job.session.mean(right)]


def imagenet(job):
    """pytorch/examples, imagenet: SGD with momentum, a look at the best accuracy, each rank validates a part."""
    pictures, labels = images(job)
    torch.manual_seed(5)
    job.model = Convolutions(norm=True).double()
    job.optimizer = torch.optim.SGD(job.model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    job.loader = DataLoader(TensorDataset(pictures, labels), batch_size=BATCH)
    best = Kept(accuracy=0.0)
    job.session.keep(best=best)
    scheduler, = job.wrap(torch.optim.lr_scheduler.StepLR(job.optimizer, step_size=2, gamma=0.1))
    session, criterion = job.session, nn.CrossEntropyLoss()
    for _ in range(4):
        job.model.train()
        for number, (data, target) in job.counted():
            loss = criterion(job.model(data), target)
            job.optimizer.zero_grad()
            loss.backward()
            job.step()
        job.model.eval()
        mine = slice(session.rank, None, session.world_size)
        with torch.no_grad():
            right = (job.model(pictures[mine]).argmax(1) == labels[mine]).double()
        accuracy = session.mean(right.mean(), weight=len(right))
        best.values["accuracy"] = max(best.values["accuracy"], accuracy)
        scheduler.step()
    job.notes = [round(best.values["accuracy"], 9)]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(11, 8), nn.RNN(8, 8), nn.Linear(8, 11)

    def forward(self, tokens, hidden):
        found, hidden = self.cell(self.table(tokens), hidden)
        return self.out(found).flatten(0, 1), hidden


def word_language_model(job):
    """pytorch/examples, word_language_model: no loader, time first, a hidden state that is carried on, a rate that falls when the
    validation does."""
    session = job.session
    tokens = (job.inputs.flatten().abs() * 100).long() % 11
    columns = tokens[:480].view(12, 40).t()
    own = columns.chunk(session.world_size, dim=1)[session.rank].contiguous()
    torch.manual_seed(5)
    job.model = Words().double()
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=1.0)
    kept = Kept(hidden=torch.zeros(1, own.shape[1], 8, dtype=torch.float64), best=math.inf)
    session.keep(kept=kept)
    job.model, job.optimizer = session.wrap(job.model, job.optimizer, **job.clip(0.25))
    job.steps = session.batches_done
    per_epoch = 5
    for step in range(session.batches_done, 4 * per_epoch):
        first = step % per_epoch * 7
        found, hidden = job.model(own[first:first + 7], kept.values["hidden"])
        loss = functional.cross_entropy(found, own[first + 1:first + 8].flatten())
        job.optimizer.zero_grad()
        loss.backward()
        kept.values["hidden"] = hidden.detach()
        job.clip_if_plain(0.25)
        job.step()
        if (step + 1) % per_epoch == 0:
            kept.values["hidden"] = torch.zeros_like(kept.values["hidden"])
            with torch.no_grad():
                found, _ = job.model(columns[:39], None)
                loss = functional.cross_entropy(found, columns[1:].flatten()).item()
            if loss > kept.values["best"] - 0.05:
                job.optimizer.param_groups[0]["lr"] /= 4
            kept.values["best"] = min(loss, kept.values["best"])
    job.notes = [job.optimizer.param_groups[0]["lr"]]


class Encoding(collections.UserDict):
    """As transformers' BatchEncoding: no dict, and with attributes."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def glue_without_a_trainer(job):
    """transformers, run_glue_no_trainer: batches that are no dict, two groups, warm-up with each step, accumulation, a number of
    steps that ends the loop in an epoch."""
    def collate(rows):
        return Encoding({"input_ids": torch.stack([row[0] for row in rows]), "labels": torch.stack([row[1] for row in rows]),
                         "texts": ["a sentence"] * len(rows)})

    job.loader = DataLoader(TensorDataset(job.inputs, job.inputs.argmax(1) % 3), batch_size=BATCH, collate_fn=collate)
    decayed = [one for name, one in job.model.named_parameters() if "bias" not in name]
    others = [one for name, one in job.model.named_parameters() if "bias" in name]
    job.optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.02)
    most = 10
    scheduler, = job.wrap(torch.optim.lr_scheduler.LambdaLR(
        job.optimizer, lambda step: min(step / 3, 1.0) * max(0.0, (most - step) / most) + 0.1))
    while job.steps < most:
        for number, batch in job.counted():
            is_last = number % 2 == 1 or number + 1 == len(job.loader)
            with contextlib.nullcontext() if is_last else job.session.no_sync():
                (functional.cross_entropy(job.model(batch["input_ids"]), batch.labels) / 2).backward()
            if is_last:
                job.step()
                scheduler.step()
                job.optimizer.zero_grad()
            if job.steps >= most:
                break


def timm(job):
    """timm's train.py: RMSprop, an average of the weights with each update, rates that a scheduler of its own sets, hooks."""
    job.optimizer = torch.optim.RMSprop(job.model.parameters(), lr=0.01, alpha=0.9, momentum=0.9)
    average = copy.deepcopy(job.model)
    job.session.keep(average=average)
    job.wrap()
    seen = []
    job.optimizer.register_step_post_hook(lambda *_: seen.append(job.steps))
    updates_per_epoch = len(job.loader)
    for epoch in range(3):
        job.model.train()
        for number, (data, target) in job.counted():
            update = epoch * updates_per_epoch + number
            for group in job.optimizer.param_groups:
                group["lr"] = 0.01 * (0.5 + 0.5 * math.cos(math.pi * update / 18)) if update > 2 else 0.002 * (update + 1)
            job.optimizer.zero_grad()
            functional.smooth_l1_loss(job.model(data), target).backward()
            job.step()
            with torch.no_grad():
                for kept, new in zip(average.parameters(), job.model.parameters()):
                    kept.lerp_(new, 0.1)
    assert seen[-1] == job.steps - 1
    job.notes = [round(value, 9) for value in average[0].weight.flatten().tolist()[:5]]


def a_learnable_loss(job):
    """A temperature that the loss learns, in the optimizer of the model (CLIP and metric learning)."""
    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.logit_scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

        def forward(self, found, target):
            return functional.cross_entropy(self.logit_scale.exp() * found, target)

    loss_of = Temperature()
    job.loader = DataLoader(TensorDataset(job.inputs, job.inputs.argmax(1) % 3), batch_size=BATCH)
    job.optimizer = torch.optim.Adam([*job.model.parameters(), *loss_of.parameters()], lr=0.02)
    job.wrap()
    for _ in range(3):
        for data, target in job.loader:
            job.optimizer.zero_grad()
            loss_of(job.model(data), target).backward()
            job.step()
    job.notes = [round(loss_of.logit_scale.item(), 9)]


def early_stopping(job):
    """An early stop by the validation's loss, and a scheduler that follows it."""
    stopper = Kept(best=math.inf, bad=0)
    job.session.keep(stopper=stopper)
    plateau, = job.wrap(torch.optim.lr_scheduler.ReduceLROnPlateau(job.optimizer, patience=0, factor=0.3))
    session, held_out = job.session, slice(40, 63)
    for _ in range(session.epochs_done, 6):
        for data, target in job.loader:
            job.optimizer.zero_grad()
            functional.mse_loss(job.model(data), target).backward()
            job.step()
        job.model.eval()
        mine = slice(held_out.start + session.rank, held_out.stop, session.world_size)
        with torch.no_grad():
            loss = functional.mse_loss(job.model(job.inputs[mine]), job.targets[mine]) * (1 + 0.4 * (job.steps > 12))
        job.model.train()
        loss = session.mean(loss, weight=len(job.inputs[mine]))
        plateau.step(loss)
        kept = stopper.values
        kept["bad"] = 0 if loss < kept["best"] else kept["bad"] + 1
        kept["best"] = min(loss, kept["best"])
        if kept["bad"] >= 2:
            break
    job.notes = [round(job.optimizer.param_groups[0]["lr"], 12)]


def nanogpt(job):
    """nanoGPT: no loader, micro-steps, a rate that is set with each step."""
    session, size = job.session, BATCH // job.session.world_size
    job.model, job.optimizer = session.wrap(job.model, job.optimizer, **job.clip(1.0))
    job.steps = session.batches_done
    for step in range(session.batches_done, 12):
        for group in job.optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (step + 1) / 4)
        for micro in range(2):
            first = (step * 2 + micro) * 5 % 50 + session.rank * size
            with session.no_sync() if micro == 0 else contextlib.nullcontext():
                found = job.model(job.inputs[first:first + size])
                (functional.mse_loss(found, job.targets[first:first + size]) / 2).backward()
        job.clip_if_plain(1.0)
        job.step()
        job.optimizer.zero_grad(set_to_none=True)


PUBLIC = (mnist, imagenet, word_language_model, glue_without_a_trainer, timm, a_learnable_loss, early_stopping, nanogpt)
