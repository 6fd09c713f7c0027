"""The scripts of recovery.py: the same training with dtrain's lines, and as torchrun's users write it.

    recovery_script.py dtrain MODEL
    recovery_script.py torchrun MODEL FOLDER PERIOD      under torchrun --max-restarts

MODEL is cnn (Fashion-MNIST) or mlp (25M parameters), with SGD and momentum, 64 samples of a rank in a batch. The second one is
DistributedDataParallel over gloo. Rank 0 saves model and optimizer by torch.save() after every PERIOD batches, under another
name first, and each start loads what is there. Each rank appends a line "BATCH START_NS END_NS" to FOLDER/batches-RANK for each
batch (monotonic clock), rank 0 the seconds of each save to FOLDER/saves, and each rank its process to FOLDER/pids.
"""
import os
import sys
import time
from pathlib import Path

import torch

from compute_models import make

BATCH = 64
FOREVER = 10**6  # epochs
MODELS = {"cnn": ("fashion_cnn", {}), "mlp": ("mlp", {"width": 2048, "depth": 6})}


class Samples(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data.inputs)

    def __getitems__(self, chosen):
        return self.data.batch(torch.tensor(chosen))


def training(name):
    make_model, data = make(*MODELS[name])
    torch.manual_seed(0)
    model = make_model()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), data


def with_dtrain(name):
    import dtrain

    session = dtrain.init()
    model, optimizer, data = training(name)
    loader = torch.utils.data.DataLoader(Samples(data), batch_size=BATCH * session.world_size, shuffle=True, drop_last=True,
                                         collate_fn=lambda batch: batch)
    model, optimizer, loader = session.wrap(model, optimizer, loader)
    for _ in range(FOREVER):
        for inputs, labels in loader:
            loss = data.loss(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_torchrun(name, folder, period):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    with open(folder / "pids", "a") as pids:
        print(rank, os.getpid(), file=pids)
    model, optimizer, data = training(name)
    model = torch.nn.parallel.DistributedDataParallel(model)
    done = 0
    newest = folder / "checkpoint.pt"
    if newest.exists():
        state = torch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["batch"]
    order = torch.Generator().manual_seed(rank)
    with open(folder / f"batches-{rank}", "a", buffering=1) as batches:
        while True:
            began = time.monotonic_ns()
            inputs, labels = data.batch(torch.randint(0, len(data.labels), (BATCH,), generator=order))
            loss = data.loss(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            print(done, began, time.monotonic_ns(), file=batches)
            if done % period == 0 and rank == 0:
                began = time.monotonic()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batch": done}, folder / "new.pt")
                os.replace(folder / "new.pt", newest)
                with open(folder / "saves", "a") as saves:
                    print(time.monotonic() - began, file=saves)


if __name__ == "__main__":
    if sys.argv[1] == "dtrain":
        with_dtrain(sys.argv[2])
    else:
        with_torchrun(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
