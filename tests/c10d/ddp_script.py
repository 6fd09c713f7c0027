"""An ordinary script of PyTorch's, which knows nothing of dtrain: DistributedDataParallel, a sampler, an evaluation after each epoch.

    ddp_script.py OUT.json [--backend gloo] [--epochs N] [--fault WHAT]
"""
import argparse
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--backend", default="gloo")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--parts", type=int, default=1, help="backward passes of a step")
parser.add_argument("--fault", default="")
options = parser.parse_args()

if options.fault != "alone":
    dist.init_process_group(options.backend)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(7)
features = torch.randn(96, 20)
data = TensorDataset(features, features.sum(1, keepdim=True).sin())
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
trained = model if options.fault == "alone" else DistributedDataParallel(model)
optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01)
sampler = DistributedSampler(data, num_replicas=size, rank=rank, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
losses = []
for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(trained(inputs), targets)
        (loss / options.parts).backward()
        if (number + 1) % options.parts == 0:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if options.fault == "raise" and rank == 1 and number == 3:
            raise ValueError("planted")
        if options.fault == "exit" and number == 3:
            sys.exit(3)
    with torch.no_grad():
        losses.append(sum(torch.nn.functional.mse_loss(trained(inputs), targets).item() for inputs, targets in DataLoader(data, 32)))
if rank == 0:
    with open(options.out, "w") as file:
        json.dump({"losses": losses, "weights": [parameter.tolist() for parameter in model.parameters()],
                   "backend": "" if options.fault == "alone" else dist.get_backend()}, file)
if options.fault != "alone":
    dist.destroy_process_group()
