"""Writes the model of main.cpp as a TorchScript file, which `dtrain` trains without C++.

    make_model.py [FILE] [--seed 0]              (default: net.pt beside this file)
"""
import argparse
import warnings
from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    """Takes images [batch, 1, 28, 28] with values from 0 to 1, returns scores [batch, classes]."""

    def __init__(self, classes: int = 5):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU())
        self.head = nn.Linear(128, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk((images - 0.286) / 0.353))


def main():
    parser = argparse.ArgumentParser(description="Write a CNN for five classes as TorchScript.")
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).resolve().parent / "net.pt")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer PyTorch calls TorchScript deprecated; it still writes and reads it
        torch.jit.script(Net()).save(str(arguments.file))
    print(f"written to {arguments.file}")


if __name__ == "__main__":
    main()
