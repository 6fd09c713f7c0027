"""One rank of bench_startup's peer: the synthetic example's model under DistributedDataParallel, one step.

usage: torchrun --nproc-per-node 2 ddp_startup.py OUTPUT_BASE
Writes the monotonic clock in nanoseconds at the end of the first step to OUTPUT_BASE + RANK.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# The figures of configs/synthetic.yaml.
SAMPLES, FEATURES, WIDTH, DEPTH, CLASSES, GLOBAL_BATCH = 20_000, 256, 512, 4, 10, 128

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
sizes = [FEATURES] + [WIDTH] * (DEPTH - 1) + [CLASSES]
layers = []
for i in range(DEPTH):
    layers.append(nn.Linear(sizes[i], sizes[i + 1]))
    if i + 1 < DEPTH:
        layers.append(nn.ReLU())
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
features = torch.randn(SAMPLES, FEATURES)
label = torch.randint(CLASSES, (SAMPLES,))
mine = torch.randperm(SAMPLES)[rank::world][: GLOBAL_BATCH // world]
optimizer.zero_grad(set_to_none=True)
nn.functional.cross_entropy(model(features[mine]), label[mine]).backward()
optimizer.step()
with open(sys.argv[1] + os.environ["RANK"], "w") as output:
    output.write(str(time.monotonic_ns()))
dist.destroy_process_group()
