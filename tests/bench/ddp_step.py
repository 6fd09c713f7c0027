"""One rank of the DistributedDataParallel peer of bench_step: the same model, batch and optimizer, over gloo.

usage: ddp_step.py RANK WORLD_SIZE STORE_FILE FIFO_BASE BATCH WIDTH DEPTH
Commands "default N" and "fused N" on FIFO_BASE + RANK + ".commands" make N steps with AdamW as it comes, or with
fused=True; the answer is one line of N step times in nanoseconds. "end" ends it.
"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from ddp_model import ddp_model, own_data

rank, world, store, fifo = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
batch, width, depth = (int(a) for a in sys.argv[5:8])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def make(fused):
    model = ddp_model(width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True) if fused else torch.optim.AdamW(model.parameters())
    return model, optimizer


contestants = {"default": make(False), "fused": make(True)}
x, y = own_data(rank, batch, width)

with open(f"{fifo}{rank}.commands") as commands, open(f"{fifo}{rank}.replies", "w") as replies:
    for line in commands:
        words = line.split()
        if words[0] == "end":
            break
        model, optimizer = contestants[words[0]]
        times = []
        for _ in range(int(words[1])):
            started = time.monotonic_ns()
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            times.append(time.monotonic_ns() - started)
        print(*times, file=replies, flush=True)
dist.destroy_process_group()
