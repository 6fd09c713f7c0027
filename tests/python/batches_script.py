"""Trains on batches of one kind, as a script or a trial, and writes which samples this rank had to seen-RANK.json."""
import collections
import dataclasses
import json
import random
from pathlib import Path

import dtrain
import numpy
import torch
from torch import nn
from torch.utils import data

SAMPLES, BATCH, EPOCHS = 40, 12, 2


@dataclasses.dataclass
class Pair:
    x: object
    y: object


class Own:
    """As PyG's batches: attributes, and no way to divide it that could be seen."""

    def __init__(self, x, y):
        self.x, self.y = x, y


def tensors():
    x = torch.randn(SAMPLES, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.arange(SAMPLES)


def collated(kind):
    def collate(items):
        x, y = torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items])
        return {"user dict": lambda: collections.UserDict(x=x, y=y), "data class": lambda: Pair(x, y), "object": lambda: Own(x, y),
                "numpy": lambda: (x.numpy(), y.numpy()), "lists": lambda: tuple(zip(*items)),
                "time first": lambda: (x.t().contiguous(), y), "metadata first": lambda: {"meta": torch.zeros(1), "x": x, "y": y},
                "texts": lambda: {"names": [str(int(one)) for one in y], "x": x, "y": y}}[kind]()

    return collate


def pair_of(batch):
    """x and y of any of them."""
    if isinstance(batch, (Pair, Own)):
        x, y = batch.x, batch.y
    elif isinstance(batch, (tuple, list)):
        x, y = batch
    elif "features" in batch:
        x, y = batch["features"], batch["target"]
    else:
        x, y = batch["x"], batch["y"]
        assert "names" not in batch or [int(name) for name in batch["names"]] == y.tolist(), batch
    if isinstance(x, tuple):
        x, y = torch.stack(x), torch.stack(y)
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    return (x if x.shape[0] == y.shape[0] else x.t()), y


class Halving(data.DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            x, y = pair_of(batch)
            yield {"x": x / 2, "y": y, "names": [str(int(one)) for one in y], "scale": 3.0}


class Stream(data.IterableDataset):
    """Batches in an order that is drawn anew for each epoch, by the streams of three packages."""

    def __init__(self, kind):
        self.kind = kind

    def __iter__(self):
        x, y = tensors()
        order = torch.randperm(SAMPLES)[torch.from_numpy(numpy.random.permutation(SAMPLES))].tolist()
        random.shuffle(order)
        for first in range(0, SAMPLES, BATCH):
            chosen = order[first:first + BATCH]
            yield collated(self.kind)([(x[one], y[one]) for one in chosen])


class Endless(data.Sampler):
    def __iter__(self):
        while True:
            yield random.randrange(SAMPLES)


def write_arrays(folder, kind):
    for name, values in zip(("features", "target"), tensors()):
        numpy.save(folder / f"{name}.npy", values[:int(kind.removeprefix("engine "))].numpy())


def loader_of(kind, folder):
    if kind.startswith("engine "):  # the first samples, the last batch of which is short
        return dtrain.data.Loader("npy", features=folder / "features.npy", target=folder / "target.npy", batch_size=BATCH,
                                  shuffle=False, drop_last=False)
    if kind.startswith("split by "):  # 36 samples of all
        way = kind.removeprefix("split by ")
        order = {"random": lambda: random.sample(range(SAMPLES), SAMPLES), "numpy": lambda: numpy.random.permutation(SAMPLES).tolist(),
                 "torch": lambda: torch.randperm(SAMPLES).tolist()}[way]()
        return data.DataLoader(data.Subset(data.TensorDataset(*tensors()), order[:36]), batch_size=BATCH, shuffle=True)
    if kind == "subclass":
        return Halving(data.TensorDataset(*tensors()), batch_size=BATCH, shuffle=True)
    if kind == "endless":
        return data.DataLoader(data.TensorDataset(*tensors()), batch_size=BATCH, sampler=Endless())
    if kind.startswith("stream of "):
        stream = data.DataLoader(Stream(kind.removeprefix("stream of ")), batch_size=None)
        if kind == "stream of time first":
            return dtrain.divisible(stream, samples=lambda batch: batch[1].shape[0],
                                    part=lambda batch, rows: (batch[0][:, rows], batch[1][rows]))
        return dtrain.divisible(stream, whole="meta") if kind == "stream of metadata first" else stream
    return data.DataLoader(data.TensorDataset(*tensors()), batch_size=BATCH, shuffle=True, collate_fn=collated(kind))


def model_and_optimizer():
    torch.manual_seed(3)
    model = nn.Linear(12, 1, dtype=torch.float64)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x)[:, 0], y.to(torch.float64))


def train(session, kind, loader, epochs=EPOCHS):
    """The samples of each batch, and the weights."""
    model, optimizer = model_and_optimizer()
    if session is not None:
        model, optimizer, loader = session.wrap(model, optimizer, loader)
    seen = []
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            x, y = pair_of(batch)
            seen.append(y.tolist())
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            if kind == "endless" and number == 2:
                break
    return seen, model


class Batches(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        context.hyperparameters["other"]
        self.folder = Path(context.hyperparameters["folder"])
        model, optimizer = model_and_optimizer()
        self.model = context.wrap_model(model)
        context.wrap_optimizer(optimizer)
        self.seen = []

    def training_loader(self):
        return loader_of(self.context.hyperparameters["kind"], self.folder)

    def train_batch(self, batch):
        x, y = pair_of(batch)
        self.seen.append(y.tolist())
        (self.folder / f"seen-{self.context.rank}.json").write_text(json.dumps(self.seen))
        loss = loss_of(self.model, x, y)
        self.context.backward(loss)
        return {"loss": loss}


def main():
    session = dtrain.init()
    settings = session.hyperparameters
    if settings["other"] == session.rank:  # what this rank does by itself
        random.seed(8)
    kind = settings["kind"]
    folder = Path(settings["folder"])
    seen, _ = train(session, kind, loader_of(kind, folder), 1 if kind == "endless" else EPOCHS)
    (folder / f"seen-{session.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
