"""One rank of the DistributedDataParallel peer of bench.py.

    ddp_bench_rank.py RANK RANKS PORT cuda|cpu WORKLOAD BATCH TINY(0|1) PRECISION none|bf16

A line "eager N", "channels_last N" or "compiled N" on standard input makes N steps (of the model as it is, with images and
weights of convolutions in channels_last, or also by torch.compile) and answers with the mean milliseconds of a step, or with "error: REASON". "end" ends it.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import make_optimizer
from workloads import Workload, batch_loss_of

rank, ranks, port, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
workload = Workload(sys.argv[5], sys.argv[7] == "1", int(sys.argv[6]))
on_gpu = device == "cuda"
torch.set_float32_matmul_precision(sys.argv[8])
torch.backends.cudnn.allow_tf32 = sys.argv[8] != "highest"
torch.backends.cudnn.benchmark = True
if on_gpu:
    torch.cuda.set_device(rank)
else:
    torch.set_num_threads(1)
dist.init_process_group("nccl" if on_gpu else "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                        world_size=ranks)


def batches(features, target):
    """Endless; on a GPU from pinned memory, one batch ahead, as dtrain does it."""
    if on_gpu:
        features, target = features.pin_memory(), target.pin_memory()
    count = len(target) // workload.batch
    ahead = None
    step = rank
    while True:
        chosen = slice(step % count * workload.batch, (step % count + 1) * workload.batch)
        loaded = features[chosen].to(device, non_blocking=True), target[chosen].to(device, non_blocking=True)
        if ahead:
            yield ahead
        ahead = loaded
        step += ranks


def make(which):
    model = workload.model().to(device)
    if workload.name == "resnet50" and which != "eager":
        model = model.to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model, device_ids=[rank] if on_gpu else None, gradient_as_bucket_view=True)
    run = torch.compile(ddp) if which == "compiled" else ddp
    return run, make_optimizer(model, workload.optimizer, fused=True), batches(*workload.data())


def steps(contestant, count):
    model, optimizer, source = contestant
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()
    started = time.monotonic()
    for _ in range(count):
        features, target = next(source)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=sys.argv[9] == "bf16"):
            loss = batch_loss_of(model, features, target)
        loss.backward()
        optimizer.step()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.monotonic() - started) / count * 1e3


contestants = {}
for line in sys.stdin:
    words = line.split()
    if words[0] == "end":
        break
    try:
        if words[0] not in contestants:
            contestants[words[0]] = make(words[0])
        answer = f"{steps(contestants[words[0]], int(words[1])):.6f}"
    except Exception as error:  # torch.compile needs a compiler, which a machine may lack
        answer = f"error: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    print(answer, flush=True)
sys.stdout.flush()
os._exit(0)  # without destructors, in which threads of gloo and NCCL now and then end the process
