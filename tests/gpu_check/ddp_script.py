"""An ordinary script of PyTorch's on GPUs (or CPUs), which knows nothing of dtrain: DistributedDataParallel for some steps.

    ddp_script.py OUT.json --backend nccl [--steps N] [--warm-up N] [--module NAME]

Rank 0 writes the losses, and the mean milliseconds of a step after the first ones. --module is imported first: where dtrain is
not installed, dtrain.distributed makes the backend known.
"""
import argparse
import importlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--backend", required=True)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--warm-up", type=int, default=20)
parser.add_argument("--module")
options = parser.parse_args()
if options.module:
    importlib.import_module(options.module)

WIDTH, BATCH = 1024, 32
on_gpu = torch.cuda.is_available() and options.backend != "gloo" and os.environ.get("GPU_CHECK_DEVICE") != "cpu"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if on_gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
dist.init_process_group(options.backend)
torch.manual_seed(7)
data = TensorDataset(torch.randn(options.steps * BATCH * size, WIDTH), torch.randn(options.steps * BATCH * size, 1))
layers = [torch.nn.Linear(WIDTH, WIDTH) if number % 2 == 0 else torch.nn.Tanh() for number in range(8)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).to(device)
trained = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None, bucket_cap_mb=8)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
losses, begun = [], 0.0
batches = DataLoader(torch.utils.data.Subset(data, range(rank, len(data), size)), batch_size=BATCH)
for number, (inputs, targets) in enumerate(batches):
    if number == options.warm_up:
        if on_gpu:
            torch.cuda.synchronize()
        begun = time.perf_counter()
    loss = torch.nn.functional.mse_loss(trained(inputs.to(device)), targets.to(device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
if on_gpu:
    torch.cuda.synchronize()
milliseconds = 1e3 * (time.perf_counter() - begun) / (options.steps - options.warm_up)
if rank == 0:
    with open(options.out, "w") as file:
        json.dump({"losses": torch.stack(losses).tolist(), "milliseconds": milliseconds, "backend": dist.get_backend()}, file)
dist.destroy_process_group()
