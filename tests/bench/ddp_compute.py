"""One rank of the DistributedDataParallel peers of bench_compute, over gloo; of a world of one, the peers without it.

    ddp_compute.py RANK WORLD_SIZE STORE_FILE FIFO_BASE MODEL BATCH SIZES_JSON THREADS

Commands "CONTESTANT N" on FIFO_BASE + RANK + ".commands" make N steps; the answer is one line of N step times in
nanoseconds. "end" ends it. A contestant is made when its first command comes; when that fails, its times are 0, and
FIFO_BASE + CONTESTANT + ".problem" says why. FIFO_BASE + "parameters" has the number of the model's parameters.

    ddp          as a tutorial has it: DistributedDataParallel(model), AdamW(parameters), float32
    expert       as an expert tunes it, in float32: channels_last for images, AdamW(fused=True),
                 gradient_as_bucket_view, static_graph
    expertbf     expert with forward and loss in autocast to bfloat16
    compiled     expertbf with torch.compile
    compiled32   expert with torch.compile
In a world of one there is no DistributedDataParallel: one process with all THREADS is what PyTorch offers for one machine.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from compute_models import make

rank, world, store, fifo, name, batch = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6], int(sys.argv[6])
torch.set_num_threads(int(sys.argv[8]))
torch.manual_seed(0)
make_model, data = make(name, json.loads(sys.argv[7]))
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
order = torch.Generator().manual_seed(rank)
with open(f"{fifo}parameters", "w") as file:
    print(sum(parameter.numel() for parameter in make_model().parameters()), file=file)


def parallel(model, **options):
    return DistributedDataParallel(model, **options) if world > 1 else model


class Contestant:
    def __init__(self, kind):
        model = make_model()
        self.bf16 = kind in ("expertbf", "compiled")
        self.channels_last = kind != "ddp" and data.images
        if kind == "ddp":
            self.model = parallel(model)
            self.optimizer = torch.optim.AdamW(model.parameters())
            return
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.model = parallel(model, gradient_as_bucket_view=True, static_graph=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        if kind in ("compiled", "compiled32"):
            self.model = torch.compile(self.model)

    def step(self):
        x, y = data.batch(torch.randint(0, len(data.labels), (batch,), generator=order))
        if self.channels_last:
            x = x.to(memory_format=torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = data.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()


def try_to_make(kind):
    try:
        contestant = Contestant(kind)
        contestant.step()  # compiles
        return contestant
    except Exception as error:  # a machine may lack the compiler or the headers that torch.compile needs
        lines = str(error).strip().splitlines() or [""]
        with open(f"{fifo}{kind}.problem", "w") as file:
            print(f"{type(error).__name__}: {lines[0]}", file=file)
        return None


contestants = {}
with open(f"{fifo}{rank}.commands") as commands, open(f"{fifo}{rank}.replies", "w") as replies:
    for line in commands:
        words = line.split()
        if words[0] == "end":
            break
        kind, steps, times = words[0], int(words[1]), []
        if kind not in contestants:
            contestants[kind] = try_to_make(kind)
        for _ in range(steps):
            started = time.monotonic_ns()
            if contestants[kind]:
                contestants[kind].step()
            times.append(time.monotonic_ns() - started if contestants[kind] else 0)
        print(*times, file=replies, flush=True)
sys.stdout.flush()
os._exit(0)  # without destructors, in which threads of gloo now and then end the process
