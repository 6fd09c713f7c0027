"""A script that does what its hyperparameter "what" says."""
import contextlib
import os
import shutil
import sys
import threading
import time
from sys import exit as imported_exit
from types import SimpleNamespace

import dtrain
import numpy
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(inputs, labels)


class EpochBatches:
    """A batch sampler that looks at its epoch, and draws from a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator()
        self.epochs = []

    def __len__(self):
        return 4

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        yield from torch.randperm(32, generator=self.generator).view(4, 8).tolist()


class Counting(nn.Linear):
    """Puts another tensor in its buffer's place with each forward pass."""

    def __init__(self, grows=False):
        super().__init__(6, 3)
        self.grows = grows
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes = torch.cat([self.passes, self.passes]) if self.grows else self.passes + 1
        return super().forward(x)


def leave(what):
    """sys.exit() in one of the ways that `what` names."""
    if what in ("exit caught", "exit caught by a function"):
        with contextlib.suppress(SystemExit):
            sys.exit(1)
    elif what == "exit caught by a generator":
        def generate():
            with contextlib.suppress(SystemExit):
                sys.exit(1)
            yield
        next(generate())
    elif what == "exit caught without its traceback":
        try:
            sys.exit(1)
        except SystemExit as error:
            error.__traceback__ = None
    elif what == "exit of site":
        exit(3)
    elif what == "exit imported before":
        imported_exit(3)
    elif what == "exit of a thread":
        thread = threading.Thread(target=sys.exit, args=(1,))
        thread.start()
        thread.join()
    elif what == "exit raised again":
        try:
            sys.exit(1)
        except SystemExit:
            raise
    elif what.startswith("exit "):
        code = what.removeprefix("exit ")
        sys.exit(int(code) if code.isdigit() else code)


session = dtrain.init()
what = session.hyperparameters["what"]
if what == "init twice":
    dtrain.init()
if what == "keep without a state":
    session.keep(averages=[])
if what == "keep a set":
    session.keep(seen=SimpleNamespace(state_dict=lambda: {"indices": {1, 2}}, load_state_dict=print))
if what == "process group":
    distributed.barrier()
if what == "variable of torchrun":
    os.environ["LOCAL_WORLD_SIZE"]
if what == "no wrap":
    sys.exit(0)
inputs, labels = torch.randn(32, 6), torch.randint(0, 3, (32,))
data, size, more = TensorDataset(inputs, labels), 8, {}
if what == "batch size":
    size = 16
if what == "distributed sampler":
    more = {"sampler": DistributedSampler(data, 2, session.rank)}
if what == "custom sampler":
    more = {"sampler": SubsetRandomSampler(range(8, 32))}
if what == "batch sampler":
    inputs[:, 0] = torch.arange(32)
    more = {"batch_sampler": EpochBatches()}
if what == "workers":
    more = {"num_workers": 2}
if what == "iterable":
    data = Stream()
model = nn.Sequential(nn.LazyLinear(3) if what == "lazy" else nn.Linear(6, 3))
if what in ("replaced buffer", "growing buffer"):
    model = Counting(grows=what == "growing buffer")
if what == "expanded parameter":
    model[0].bias = nn.Parameter(torch.zeros(1).expand(3))
if what == "expanded buffer":
    model.register_buffer("mask", torch.ones(1).expand(3))
if what == "complex buffer":
    model.register_buffer("turns", torch.ones(3, dtype=torch.complex64))
if what == "fully sharded":
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    fully_shard(model)
if what == "nothing to train":
    model.requires_grad_(False)
if what == "batch norm":
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
if what == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters())
elif what == "rate of a rank, nadam":
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.1)
else:
    optimizer = torch.optim.SGD(model.parameters() if what != "lazy" else [nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9,
                                fused=True if what == "scaled loss" else None)
scaler = torch.amp.GradScaler("cpu", enabled=what == "scaled loss")
schedule = None
if what == "cycled momentum":
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
loader = DataLoader(data, **({} if "batch_sampler" in more else {"batch_size": size}), **more)
if what == "compiled":
    model = torch.compile(nn.Sequential(nn.Conv2d(1, 1, 1), model))
if "ddp" in what:  # in a group of this rank alone: another one would need a port
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
if what == "model within ddp":
    model = DistributedDataParallel(model)
if what == "model within data parallel":
    model = nn.DataParallel(model)
if what == "ddp around":
    around = DistributedDataParallel(model)
if what == "divided":
    mine = slice(session.rank, None, session.world_size)
    loader = dtrain.divided([(x[mine], y[mine]) for x, y in zip(inputs.split(8), labels.split(8))])
if what == "scheduled":
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, loader, schedule = session.wrap(model, optimizer, loader, schedule)
else:
    model, optimizer, loader = session.wrap(model, optimizer, loader)
if what == "ddp around later":
    around = DistributedDataParallel(model)
if what == "load other settings":
    state = optimizer.state_dict()
    state["param_groups"][0]["nesterov"] = True
    optimizer.load_state_dict(state)
if what == "wrap twice":
    session.wrap(model, optimizer, loader)
batches, seen = 0, [[] for _ in range(4)]
for epoch in range(4):
    for index, (x, y) in enumerate(loader):
        seen[epoch] += x[:, 0].tolist()
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum" if what == "summed loss" else "mean")
        if what == "closure":
            def closure():
                loss.backward()
                return loss
            optimizer.step(closure)
            continue
        if what == "batch left out by a rank" and session.rank == 1 and index == 1:
            continue
        scaler.scale(loss).backward()
        if what == "step left out by a rank" and session.rank == 1 and index == 1:
            optimizer.zero_grad()
            continue
        if what == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if what == "step left out" and index == 0:
            continue
        if what == "backward twice":
            loss.backward()
        if what == "scaled loss":
            scaler.step(optimizer)
        if what == "lbfgs":
            optimizer.step(lambda: loss)
        optimizer.step()
        if schedule:
            schedule.step()
        batches += 1
        if what.startswith("rate of a rank") and batches == 3:
            optimizer.param_groups[0]["lr"] *= 1 + session.rank
        if what == "load late":
            optimizer.load_state_dict(optimizer.state_dict())
        if what == "keep late":
            session.keep(late=loader)
        if what == "step twice":
            optimizer.step()
        if what == "exception" and session.rank == 1 and batches == 3:
            raise ValueError("the third batch is bad")
        if what == "exit caught" and batches == 3:
            try:
                sys.exit(1)
            except SystemExit:
                pass
        elif batches == 3:
            leave(what)
        if what == "break" and index == 1:
            break
        if what.startswith("folder ") and batches == 4 and session.is_main:
            if what == "folder moved":
                session.run_dir.rename(session.run_dir.with_name("elsewhere"))
            while session.run_dir.exists():  # others may write into it meanwhile
                shutil.rmtree(session.run_dir, ignore_errors=True)
            time.sleep(0.6)  # the next batch looks whether it is there
        if what == "slow" and not (session.run_dir.parent / "was_slow").exists():
            time.sleep(0.2)
    if what == "rank 0 leaves":
        session.mean(loss.detach())
        if session.rank == 0 and epoch == 1:
            break
if what == "mean after close":
    session.close()
    session.mean(1)
print(f"trained {batches} batches", flush=True)
if what == "batch sampler":
    orders = [session.gather(torch.tensor(of_epoch)).tolist() for of_epoch in seen]
    session.log_validation({"complete": all(sorted(order) == list(range(32)) for order in orders),
                            "orders": len({tuple(order) for order in orders}),
                            "told": more["batch_sampler"].epochs == [0, 1, 2, 3]})
if what == "batch norm":
    means = session.gather(model[1].running_mean.reshape(1, -1))
    session.log_validation({"alike": bool((means[0] == means[-1]).all()), "moved": bool((means != 0).all())})
if what == "evaluate":
    model.eval()
    inputs, labels = inputs[:31], labels[:31]  # parts of 16 and 15
    mine = slice(session.rank, None, session.world_size)
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).double()
    accuracy = session.mean(right[mine].mean(), weight=len(labels[mine]))
    rows = session.gather(torch.arange(session.rank + 1))  # of ranks that have different numbers of them
    try:
        session.log_validation({"scores": [0.5, 0.5]})
    except dtrain.Error as error:
        named = "the metric 'scores' is of type list" in str(error)
    session.log_validation({"by_mean": accuracy, "of_all": right.mean(), "gathered": rows.tolist() == [0, 0, 1], "named": named,
                            "nan": float("nan"), "inf": torch.tensor(float("inf")), "low": numpy.float32("-inf"),
                            "half": numpy.float16(0.5), "one": numpy.array(1), "large": 2 ** 53 + 1, "false": False})
if what == "collectives":
    mine = torch.tensor(float(session.rank + 1))
    sums = {"sum": session.all_reduce(mine), "min": session.all_reduce(mine, "min")}
    file = session.run_dir / "of_rank_1"
    if session.rank == 1:
        time.sleep(0.1)
        file.write_text("1")
    session.barrier()
    written = session.all_reduce(torch.tensor(float(file.is_file())), "min")
    untouched = session.all_reduce(torch.tensor(float(mine == session.rank + 1)), "min")
    gathered = [session.gather(torch.tensor([True, session.rank == 0])).tolist() == [True, True, True, False],
                session.gather(mine).tolist() == [1, 2]]
    session.log_validation({**sums, "gathered": all(gathered),
                            "untouched": untouched, "of_rank_1": session.broadcast(10 + torch.tensor(session.rank), 1),
                            "written": written})
