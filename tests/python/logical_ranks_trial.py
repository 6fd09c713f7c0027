"""A trial whose result depends on all that belongs to a logical rank: batches, random streams of three libraries, buffers."""
import os
import random
import signal

import dtrain
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, SAMPLES, VALIDATED = 6, 93, 41


class Pictures(Dataset):
    """Draws at random for each sample that is read."""

    def __init__(self, samples, seed):
        generator = torch.Generator().manual_seed(seed)
        self.pictures = torch.randn(samples, 1, SIDE, SIDE, generator=generator)
        self.classes = torch.randint(0, 5, (samples,), generator=generator)

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        noise = random.random() + numpy.random.rand() + torch.rand(()).item()
        return self.pictures[index] + 0.1 * noise, self.classes[index]


class Centered(nn.Module):
    """Puts another tensor in its buffer's place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


class Lazy(torch.utils.data.Sampler):
    """Draws its indices one by one, from a stream of its own and from Python's."""

    def __init__(self, samples):
        self.samples, self.generator = samples, torch.Generator()

    def __len__(self):
        return self.samples

    def __iter__(self):
        for _ in range(self.samples):
            yield (int(torch.randint(self.samples, (), generator=self.generator)) + random.randrange(self.samples)) % self.samples


class Logical(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        self.kind = context.hyperparameters["kind"]
        self.stop_at = context.hyperparameters["stop_at"]
        self.fault = context.hyperparameters["fault"]
        self.workers = {"one": 1, "two": 2}.get(self.kind, 0)
        self.batches = 0
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Centered(), nn.Flatten(), nn.Dropout(0.2)]
        self.model = context.wrap_model(nn.Sequential(*layers, nn.Linear(4 * SIDE * SIDE, 5)))
        optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=3e-3))
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30))
        if self.fault == "hooks":
            optimizer.register_step_post_hook(lambda *_: None)
        if self.fault == "callback":
            context.add_callback(dtrain.Callback())

    def training_loader(self):
        if self.kind == "engine":
            return dtrain.data.Loader("npy", features=self.context.data["features"], target=self.context.data["target"],
                                      batch_size=self.context.global_batch_size, workers=1, drop_last=False)
        data = Pictures(SAMPLES, 1)
        size = self.context.global_batch_size
        if self.fault == "worker_init":
            return DataLoader(data, size, num_workers=1, worker_init_fn=print)
        if self.fault == "tuples":
            return DataLoader(data, batch_sampler=[tuple(range(16))] * 3, num_workers=1)
        if self.fault == "divided":
            return dtrain.divided(DataLoader(data, size))
        if self.fault == "list":
            return [next(iter(DataLoader(data, size)))]
        return DataLoader(data, size, sampler=Lazy(SAMPLES), num_workers=self.workers)

    def validation_loader(self):
        return DataLoader(Pictures(VALIDATED, 2), 15, num_workers=self.workers)

    def forward(self, batch):
        pictures, classes = (batch["features"], batch["target"]) if isinstance(batch, dict) else batch
        drawn = random.random() + numpy.random.rand()
        return nn.functional.cross_entropy(self.model(pictures.view(-1, 1, SIDE, SIDE) + 0.1 * drawn), classes), drawn

    def train_batch(self, batch):
        if self.context.rank == 0:
            self.batches += 1
            if self.batches == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
        loss, drawn = self.forward(batch)
        self.context.backward(loss)
        self.context.log("drawn", drawn)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        loss, drawn = self.forward(batch)
        return {"loss": loss, "drawn": drawn}

    def state_dict(self):
        return {"batches": self.batches} if self.fault == "state" else None
