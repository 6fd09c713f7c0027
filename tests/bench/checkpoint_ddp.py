"""One rank of the Python peers of bench_checkpoint: the model of bench_step under DistributedDataParallel over gloo with
AdamW(fused=True), and checkpoints of model and optimizer as PyTorch takes them.

usage: checkpoint_ddp.py RANK WORLD_SIZE STORE_FILE FIFO_BASE BATCH WIDTH DEPTH FOLDER CHECKPOINT_STEP

A command "save N" or "async N" on FIFO_BASE + RANK + ".commands" makes N steps, with one checkpoint after step
CHECKPOINT_STEP (from 0): "save" is torch.save() by rank 0, "async" is torch.distributed.checkpoint.async_save(). The
answer is one line: N step times in nanoseconds. "plain N" takes no checkpoint. "end" ends it. For each checkpoint rank 0
appends one line to FOLDER/checkpoints.jsonl: its kind, how many steps had begun until it was written (the checkpoint's
included), and the seconds it took. Only the newest checkpoint of each kind stays; older ones go between turns.
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from ddp_model import ddp_model, own_data

rank, world, store, fifo = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
batch, width, depth = (int(a) for a in sys.argv[5:8])
folder, checkpoint_step = sys.argv[8], int(sys.argv[9])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
of_checkpoints = dist.new_group(backend="gloo")  # async_save's thread exchanges while training does

model = ddp_model(width, depth)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, y = own_data(rank, batch, width)


class Save:
    """torch.save by rank 0; the other ranks wait for it in their next all-reduce."""

    def __init__(self, path):
        self.path = path
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def done(self):
        return True

    def finish(self):
        pass

    def remove(self):
        if rank == 0:
            os.remove(self.path)


class Async:
    """async_save: the state is copied, a thread writes it."""

    def __init__(self, path):
        self.path = path
        model_state, optimizer_state = get_state_dict(model, optimizer)
        self.future = dcp.async_save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path,
                                     process_group=of_checkpoints)

    def done(self):
        return self.future.done()

    def finish(self):
        self.future.result()

    def remove(self):
        if rank == 0:
            shutil.rmtree(self.path)


kinds = {"save": Save, "async": Async}
newest = {}
count = 0
with open(f"{fifo}{rank}.commands") as commands, open(f"{fifo}{rank}.replies", "w") as replies:
    for line in commands:
        words = line.split()
        if words[0] == "end":
            break
        kind = kinds.get(words[0])
        times = []
        checkpoint, begun, until, seconds = None, 0, 0, 0
        for step in range(int(words[1])):
            started = time.monotonic_ns()
            if checkpoint and not until and checkpoint.done():
                until, seconds = step - checkpoint_step, (started - begun) / 1e9
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if kind and step == checkpoint_step:
                count += 1
                begun = time.monotonic_ns()
                checkpoint = kind(os.path.join(folder, f"{words[0]}-{count}"))
            times.append(time.monotonic_ns() - started)
        if checkpoint:
            checkpoint.finish()
            if not until:
                until, seconds = int(words[1]) - checkpoint_step, (time.monotonic_ns() - begun) / 1e9
            if words[0] in newest:
                newest[words[0]].remove()
            newest[words[0]] = checkpoint
            if rank == 0:
                with open(os.path.join(folder, "checkpoints.jsonl"), "a") as file:
                    print(json.dumps({"kind": words[0], "until": until, "seconds": seconds}), file=file)
        print(*times, file=replies, flush=True)
dist.destroy_process_group()
