"""Trains on batches of one kind, and writes which samples this rank had, and the weights, to seen-RANK.json."""
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


def loader_of(kind):
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


def train(session, kind, loader, epochs=EPOCHS):
    """The samples of each batch, and the weights."""
    torch.manual_seed(3)
    model = nn.Linear(12, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if session is not None:
        model, optimizer, loader = session.wrap(model, optimizer, loader)
    seen = []
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            x, y = pair_of(batch)
            seen.append(y.tolist())
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x)[:, 0], y.to(torch.float64)).backward()
            optimizer.step()
            if kind == "endless" and number == 2:
                break
    return seen, model


def main():
    session = dtrain.init()
    settings = session.hyperparameters
    if settings["other"] == session.rank:  # what this rank does by itself
        random.seed(8)
    kind = settings["kind"]
    seen, _ = train(session, kind, loader_of(kind), 1 if kind == "endless" else EPOCHS)
    (Path(settings["folder"]) / f"seen-{session.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
