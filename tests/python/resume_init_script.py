"""Trains with dtrain.init(run_dir=…), without an experiment file, and keeps an average of its own.

    resume_init_script.py RUN_DIR BATCH [EPOCHS]

RUN_DIR "-": dtrain chooses the folder.

A checkpoint is asked for after batch 8 by the last rank, and where BATCH is not 0, the last rank kills itself there, once.
"""
import os
import signal
import sys
import time
from pathlib import Path

import dtrain
import torch
from average import Average
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

chosen, death = sys.argv[1], int(sys.argv[2])

session = dtrain.init(run_dir=None if chosen == "-" else Path(chosen), checkpoint_policy="none", scheduling_unit=1)
run_dir = session.run_dir
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(90, 12), torch.randint(0, 4, (90,)))
average = Average()
session.keep(average=average)
model, optimizer, loader = session.wrap(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
was_there = run_dir / "was_killed"
for epoch in range(int(sys.argv[3]) if sys.argv[3:] else 4):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        average.add(loss)
        session.log("average", average.value)
        if average.count == 8 and session.rank == session.world_size - 1:
            session.save()
        if average.count == death and session.rank == session.world_size - 1 and not was_there.exists():
            was_there.touch()
            while not list(run_dir.glob("checkpoints/step-*/manifest.json")):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
