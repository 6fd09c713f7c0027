"""The data and the model that train.py and trial.py share."""
import gzip
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # apt install dataset-fashion-mnist


def read(part: str, folder: str | Path = FOLDER) -> TensorDataset:
    """Images and labels of a part: train or t10k."""

    def idx(name: str, header: int) -> torch.Tensor:
        with gzip.open(Path(folder) / f"{part}-{name}-ubyte.gz") as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    images = idx("images-idx3", 16).view(-1, 1, 28, 28).float().sub_(73).div_(90)  # mean and deviation of the set
    return TensorDataset(images, idx("labels-idx1", 8).long())


class Cnn(nn.Module):
    def __init__(self, dropout: float = 0.25) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.conv1(x), 2).relu()
        x = F.max_pool2d(self.conv2(x), 2).relu()
        return self.fc2(self.dropout(self.fc1(x.flatten(1)).relu()))
