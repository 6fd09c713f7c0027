"""One of our ranks in python_step.py: `lines` (the script's own loop), `compiled_lines` (with torch.compile) or `trial`.

    python_step_rank.py KIND FIFO_BASE MODEL BATCH SIZES_JSON

The commands and replies are those of ddp_compute.py.
"""
import json
import os
import sys
import time

import dtrain
import torch

from compute_models import make

kind, fifo, name, batch = *sys.argv[1:4], int(sys.argv[4])
make_model, data = make(name, json.loads(sys.argv[5]))


class Commands:
    """Tells before each step how long the one before took; waits while it is other contestants' turn."""

    def __init__(self, rank):
        self.commands = open(f"{fifo}{rank}.commands")
        self.replies = open(f"{fifo}{rank}.replies", "w")
        self.left, self.times, self.began = 0, [], 0

    def next(self):
        """False: there are no more."""
        now = time.monotonic_ns()
        if self.left > 0:
            self.times.append(now - self.began)
            self.left -= 1
        if self.left == 0:
            if self.times:
                print(*self.times, file=self.replies, flush=True)
                self.times = []
            words = self.commands.readline().split()
            if not words or words[0] == "end":
                return False
            self.left = int(words[1])
        self.began = time.monotonic_ns()
        return True


class Batches:
    batch_size = None

    def __init__(self, rank):
        self.rank = rank
        self.order = torch.Generator().manual_seed(rank)

    def __iter__(self):
        commands = Commands(self.rank)
        while commands.next():
            yield data.batch(torch.randint(0, len(data.labels), (batch,), generator=self.order))
        os._exit(0)  # a trial would begin another epoch


def build():
    torch.manual_seed(0)
    model = make_model()
    return model, torch.optim.AdamW(model.parameters())


class Step(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        model, optimizer = build()
        context.wrap_model(model)
        context.wrap_optimizer(optimizer)
        self.model = model

    def training_loader(self):
        return dtrain.divided(Batches(self.context.rank))

    def train_batch(self, batch):
        x, y = batch
        loss = data.loss(self.model(x), y)
        self.context.backward(loss)
        return {"loss": loss}


def lines():
    session = dtrain.init()
    model, optimizer = build()
    if kind == "compiled_lines":
        model = torch.compile(model)
    model, optimizer, loader = session.wrap(model, optimizer, dtrain.divided(Batches(session.rank)))
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = data.loss(model(x), y)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    lines()
