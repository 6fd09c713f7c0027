"""A script that does what its hyperparameter "what" says."""
import sys
import time

import dtrain
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(inputs, labels)


session = dtrain.init()
what = session.hyperparameters["what"]
if what == "init twice":
    dtrain.init()
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
if what == "workers":
    more = {"num_workers": 2}
if what == "iterable":
    data = Stream()
model = nn.Sequential(nn.LazyLinear(3) if what == "lazy" else nn.Linear(6, 3))
if what == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters())
else:
    optimizer = torch.optim.SGD(model.parameters() if what != "lazy" else [nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
schedule = None
if what == "cycled momentum":
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
loader = DataLoader(data, batch_size=size, **more)
if what == "compiled":
    model = torch.compile(nn.Sequential(nn.Conv2d(1, 1, 1), model))
model, optimizer, loader = session.wrap(model, optimizer, loader)
if what == "load other settings":
    state = optimizer.state_dict()
    state["param_groups"][0]["nesterov"] = True
    optimizer.load_state_dict(state)
if what == "wrap twice":
    session.wrap(model, optimizer, loader)
batches = 0
for epoch in range(4):
    for index, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if what == "closure":
            def closure():
                loss.backward()
                return loss
            optimizer.step(closure)
            continue
        loss.backward()
        if what == "backward twice":
            loss.backward()
        if what == "lbfgs":
            optimizer.step(lambda: loss)
        optimizer.step()
        if schedule:
            schedule.step()
        batches += 1
        if what == "load late":
            optimizer.load_state_dict(optimizer.state_dict())
        if what == "step twice":
            optimizer.step()
        if what == "exception" and session.rank == 1 and batches == 3:
            raise ValueError("the third batch is bad")
        if what == "exit 3" and batches == 3:
            sys.exit(3)
        if what == "break" and index == 1:
            break
        if what == "slow":
            time.sleep(0.2)
print(f"trained {batches} batches", flush=True)
if what == "evaluate":
    model.eval()
    inputs, labels = inputs[:31], labels[:31]  # parts of 16 and 15
    mine = slice(session.rank, None, session.world_size)
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).double()
    accuracy = session.mean(right[mine].mean(), weight=len(labels[mine]))
    rows = session.gather(torch.arange(session.rank + 1))  # of ranks that have different numbers of them
    session.log_validation({"by_mean": accuracy, "of_all": right.mean(), "gathered": rows.tolist() == [0, 0, 1]})
