"""One rank of distributed_step.py: a script of PyTorch's that knows nothing of dtrain, but for waiting until it may step.

    distributed_script.py KIND MODEL BATCH SIZES_JSON OPTIMIZER FIFO_BASE

KIND is ddp, none (DistributedDataParallel whose hook exchanges nothing) or fsdp, then a colon and the backend. OPTIMIZER is sgd
(with momentum) or adamw. It finds the others by torchrun's variables. A line "N" on FIFO_BASE + RANK + ".commands" makes N steps; the answer is one line of N times
in nanoseconds. "end" ends it, and its answer is the sum of the parameters.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from compute_models import make

OPTIMIZERS = {"sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9), "adamw": torch.optim.AdamW}


def empty_hook(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def parallel(kind, model):
    if kind == "fsdp":
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        return fully_shard(model)
    model = DistributedDataParallel(model)
    if kind == "none":
        model.register_comm_hook(None, empty_hook)
    return model


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def main():
    kind, backend = sys.argv[1].split(":")
    name, batch, sizes, fifo = sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[6]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend == "fake":  # PyTorch's own group that exchanges nothing
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    else:
        dist.init_process_group(backend)
    torch.manual_seed(0)
    make_model, data = make(name, sizes)
    model = parallel(kind, make_model())
    optimizer = OPTIMIZERS[sys.argv[5]](model.parameters())
    order = torch.Generator().manual_seed(rank)
    with open(f"{fifo}{rank}.commands") as commands, open(f"{fifo}{rank}.replies", "w") as replies:
        for command in commands:
            if command.strip() == "end":
                break
            times = []
            for _ in range(int(command)):
                began = time.perf_counter_ns()
                x, y = data.batch(torch.randint(0, len(data.labels), (batch,), generator=order))
                optimizer.zero_grad()
                data.loss(model(x), y).backward()
                optimizer.step()
                times.append(time.perf_counter_ns() - began)
            print(*times, file=replies, flush=True)
        sums = sum(float(whole(parameter).detach().double().sum()) for parameter in model.parameters())
        print(repr(sums), file=replies, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
