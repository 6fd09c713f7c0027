"""A script that says what its process is like, and trains until its run is long enough."""
import json
import os
import sys
import time

import numpy
import torch

import dtrain

if os.path.exists(os.environ["DTRAIN_RUN_DIR"] + "/../sets-variables"):
    os.environ["TORCHDYNAMO_CACHE_SIZE_LIMIT"] = "3"
session = dtrain.init()
names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "DTRAIN_RANK", "DTRAIN_NURSERY", "DTRAIN_RESUME_FROM", "COLOUR")
torch.manual_seed(3)
print("facts", json.dumps({
    "threads": torch.get_num_threads(), "interop": torch.get_num_interop_threads(), "parallel": torch.__config__.parallel_info(),
    "cpus": sorted(os.sched_getaffinity(0)), "group": os.getpgrp() == os.getpid(), "stream": numpy.random.get_state()[1].tolist()[:8],
    "variables": {name: os.environ.get(name) for name in names},
    "os": {name: value for name, value in os.environ.items() if name not in names and not name.startswith("DTRAIN_")},
    "imported": "torch._dynamo" in sys.modules, "priority": os.getpriority(os.PRIO_PROCESS, 0), "signals": open("/proc/self/status").read().partition("SigBlk")[2][:120],
    "product": (torch.randn(64, 64) @ torch.randn(64, 64)).double().sum().item()}), flush=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
loader = torch.utils.data.DataLoader(data, batch_size=session.hyperparameters["global_batch_size"], shuffle=True)
model, optimizer, loader = session.wrap(model, optimizer, loader)
slow = session.hyperparameters["slow"]
for epoch in range(5):
    for features, target in loader:
        if slow and os.path.exists(slow):
            time.sleep(0.2)
        torch.nn.functional.cross_entropy(model(features), target).backward()
        optimizer.step()
        optimizer.zero_grad()
