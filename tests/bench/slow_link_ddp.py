"""One rank of bench_slow_link's peer: DistributedDataParallel over gloo, plain or with one of its communication hooks.

    slow_link_ddp.py MODEL FOLDER HOOK RANK ADDRESS:PORT STEPS VALIDATE_EVERY SCHEDULE BATCH OUTPUT

HOOK is none, fp16 or powersgd, SCHEDULE constant or cosine. Trains the workload of slow_link_models.py in the order that dtrain has written to
FOLDER/MODEL.order, two ranks, BATCH samples each. Rank 0 writes {"step_ms": [...], "validation": [[step, loss,
accuracy], ...]} to OUTPUT.
"""
import gzip
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import slow_link_models

WORLD = 2
name, folder, hook, rank, address, steps, validate_every, schedule, batch, output = sys.argv[1:11]
folder, rank, steps, validate_every, batch = Path(folder), int(rank), int(steps), int(validate_every), int(batch)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=WORLD)


def tokens(part):
    flat = torch.from_numpy(numpy.fromfile(folder / f"{part}.tokens", "<u2").astype(numpy.int64))
    count = (len(flat) - 1) // slow_link_models.LENGTH
    return (flat[:count * slow_link_models.LENGTH].view(count, -1), flat[1:count * slow_link_models.LENGTH + 1].view(count, -1))


def images(part):
    base = f"/usr/share/datasets/fashion-mnist/{part}"
    with gzip.open(f"{base}-images-idx3-ubyte.gz") as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 1, 28, 28)
    with gzip.open(f"{base}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    return pixels, labels


def inputs(x):
    return x.float() / 255 if name == "fashion" else x


def loss_of(scores, y):
    return nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten())


def validate(model, x, y):
    """Mean loss and accuracy; each rank takes its part of the samples."""
    model.eval()
    total, right = 0.0, 0
    begin, end = len(x) * rank // WORLD, len(x) * (rank + 1) // WORLD
    with torch.no_grad():
        for start in range(begin, end, 250):
            chosen = slice(start, min(start + 250, end))
            scores = model(inputs(x[chosen]))
            total += float(loss_of(scores, y[chosen])) * len(scores)
            right += int((scores.argmax(-1) == y[chosen]).sum())
    model.train()
    sums = torch.tensor([total, right], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0]) / len(x), float(sums[1]) / y.numel()


train_x, train_y = tokens("training") if name == "transformer" else images("train")
held_x, held_y = tokens("validation") if name == "transformer" else images("t10k")
order = numpy.fromfile(folder / f"{name}.order", numpy.int64)
# The PowerSGD hook starts its second exchange when the first has ended, bucket by bucket; over gloo two ranks that see
# their buckets end in different orders then mix them up and abort. With one bucket it works.
whole = {"bucket_cap_mb": 1000} if hook == "powersgd" else {}
model = DistributedDataParallel(slow_link_models.make(name), gradient_as_bucket_view=True, **whole)
if hook == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif hook == "powersgd":
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=8, start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
factor = (lambda step: (1 + math.cos(math.pi * step / steps)) / 2) if schedule == "cosine" else (lambda step: 1)
learning_rate = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
results = {"step_ms": [], "validation": []}
for step in range(steps):
    start = (step * WORLD + rank) * batch
    chosen = torch.from_numpy(order[start:start + batch])
    began = time.monotonic()
    loss = loss_of(model(inputs(train_x[chosen])), train_y[chosen])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    learning_rate.step()
    results["step_ms"].append((time.monotonic() - began) * 1e3)
    if validate_every and (step + 1) % validate_every == 0:
        results["validation"].append([step + 1, *validate(model.module, held_x, held_y)])
if rank == 0:
    Path(output).write_text(json.dumps(results))
dist.barrier()
os._exit(0)  # without destructors: gloo's threads are now and then still running when theirs come, and abort
