"""The models of bench_compute for its peers in Python, and their data, all of it in memory.

The same models in C++: examples/fashion_mnist/fashion_cnn.h, examples/images/resnet18.h,
bench_step_trial.cpp, compute_models.h.
"""
import gzip
import sys
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu_check"))
from models import Gpt  # noqa: E402

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


class FashionCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x), 2).relu()
        x = F.max_pool2d(self.conv2(x), 2).relu()
        x = self.fc1(x.flatten(1)).relu()
        return self.fc2(F.dropout(x, 0.25, self.training))


class BasicBlock(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = None
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """torchvision's: the stem for ImageNet, 1000 classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for stage in range(4):
            width = 64 << stage
            for index in range(2):
                blocks.append(BasicBlock(inputs, width, 2 if stage > 0 and index == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(inputs, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 3, 2, 1)
        return self.out(self.blocks(x).mean([2, 3]))


class Images:
    """Of bytes; a batch is normalised when it is needed."""

    images = True

    def __init__(self, images, labels, mean, deviation):
        self.inputs, self.labels, self.mean, self.deviation = images, labels, mean, deviation

    def batch(self, chosen):
        return self.inputs[chosen].to(torch.float32).sub_(self.mean).div_(self.deviation), self.labels[chosen]

    @staticmethod
    def loss(scores, target):
        return F.cross_entropy(scores, target)


class Plain:
    """Inputs and targets as they are."""

    images = False

    def __init__(self, inputs, labels, loss):
        self.inputs, self.labels, self.loss = inputs, labels, loss

    def batch(self, chosen):
        return self.inputs[chosen], self.labels[chosen]


def read_idx(name, header):
    with gzip.open(FASHION_MNIST / f"{name}-ubyte.gz") as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header).copy()


def make(name, sizes):
    """(a function that makes the model, its data) of a model of bench_compute; `sizes` are its hyperparameters."""
    generator = torch.Generator().manual_seed(1)
    if name == "fashion_cnn":
        images = torch.from_numpy(read_idx("train-images-idx3", 16)).view(-1, 1, 28, 28)
        labels = torch.from_numpy(read_idx("train-labels-idx1", 8)).to(torch.int64)
        return FashionCnn, Images(images, labels, 73.0, 90.0)
    if name == "mlp":
        width, depth = sizes["width"], sizes["depth"]
        layers = lambda: [layer for i in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())][:-1]
        x, y = (torch.randn(256, width, generator=generator) for _ in range(2))
        return lambda: nn.Sequential(*layers()), Plain(x, y, F.mse_loss)
    if name in ("gpt", "gpt_50m"):
        tokens = torch.randint(0, sizes["tokens"], (512, sizes["length"] + 1), generator=generator)
        model = lambda: Gpt(sizes["tokens"], sizes["length"], sizes["layers"], sizes["heads"], sizes["width"])
        loss = lambda scores, target: F.cross_entropy(scores.flatten(0, 1), target.flatten())
        return model, Plain(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), loss)
    if name == "resnet18":
        images = torch.randint(0, 256, (2048, 3, 64, 64), generator=generator, dtype=torch.uint8)
        return ResNet18, Images(images, torch.randint(0, 1000, (2048,), generator=generator), 127.5, 64.0)
    raise ValueError(f"there is no model '{name}'")
