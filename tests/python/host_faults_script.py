"""A script for torchrun on several hosts: small batches, a checkpoint every fifty.

    host_faults_script.py RUN_DIR BATCHES [PAUSE_MS]
"""

import sys
import time
from pathlib import Path

import dtrain
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

session = dtrain.init(run_dir=Path(sys.argv[1]), checkpoint_policy="none", scheduling_unit=10)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
pause = int(sys.argv[3]) / 1000 if len(sys.argv) > 3 else 0
data = TensorDataset(torch.randn(800, 12), torch.randint(0, 4, (800,)))
model, optimizer, loader = session.wrap(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
for _ in range(-(-int(sys.argv[2]) // len(loader))):
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(pause)
        if session.batches_done % 50 == 0:
            session.save()
