"""Writes a small CNN for Fashion-MNIST as a TorchScript file, which `dtrain` trains as it is.

    make_model.py [--traced] [--seed N] [FILE]          (default: fashion_cnn.pt)
"""
import argparse
import warnings

import torch
from torch import nn


class FashionCnn(nn.Module):
    """Takes images [batch, 1, 28, 28] with values from 0 to 1, returns scores [batch, 10]."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)
        self.dropout = nn.Dropout(0.25)

    def forward(self, images):
        x = (images - 0.286) / 0.353  # mean and deviation of the set
        x = nn.functional.max_pool2d(self.conv1(x), 2).relu()
        x = nn.functional.max_pool2d(self.conv2(x), 2).relu()
        x = self.fc1(x.flatten(1)).relu()
        return self.fc2(self.dropout(x))


def to_torchscript(model, traced=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer PyTorch calls TorchScript deprecated; it still writes and reads it
        if not traced:
            return torch.jit.script(model)
        # A trace keeps what the model did this once: dropout is off for good when traced in evaluation mode.
        return torch.jit.trace(model.eval(), torch.zeros(2, 1, 28, 28))


def main():
    parser = argparse.ArgumentParser(description="Write a CNN for Fashion-MNIST as TorchScript.")
    parser.add_argument("file", nargs="?", default="fashion_cnn.pt")
    parser.add_argument("--traced", action="store_true", help="torch.jit.trace instead of torch.jit.script")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    to_torchscript(FashionCnn(), arguments.traced).save(arguments.file)
    print(f"written to {arguments.file}")


if __name__ == "__main__":
    main()
