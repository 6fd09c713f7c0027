"""Trains, and stops getting on, each way once: where rank 1 takes a lock twice, where a sample is read that never comes, or where rank
1 stops itself.

    hanging_script.py FOLDER WAY...     lock, sample, stop; FOLDER remembers which have been
"""
import os
import signal
import sys
import threading
from pathlib import Path

import dtrain
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder, ways = Path(sys.argv[1]), sys.argv[2:]


def is_due(way):
    if way not in ways or (folder / way).exists():
        return False
    (folder / way).touch()
    return True


def take_lock_twice():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class Samples(Dataset):
    def __init__(self):
        self.values = torch.randn(480, 12)
        self.labels = torch.randint(0, 4, (480,))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if index == 401 and is_due("sample"):
            threading.Event().wait()
        return self.values[index], self.labels[index]


# `dtrain run` has the settings of the others.
SETTINGS = {"min_checkpoint_period": {"batches": 4}, "scheduling_unit": 1, "recovery": {"hang": 1}}
session = dtrain.init(**(SETTINGS if "stop" in ways else {}))
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = session.wrap(model, optimizer, DataLoader(Samples(), batch_size=8))
for batch, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    if session.rank == 1 and batch == 11:
        if is_due("lock"):
            take_lock_twice()
        if is_due("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
    optimizer.step()
