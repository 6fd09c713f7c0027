"""Trains until the session ends, with a schedule and a state of the optimizer to begin with; sleeps so that it can be
killed in the middle. Where it accumulates, three batches are a step, and the schedule follows the loss."""
import contextlib
import os
import time

import dtrain
import torch
from average import Average
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

session = dtrain.init()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
optimizer = getattr(torch.optim, session.hyperparameters["optimizer"])(model.parameters(), lr=0.01)
accumulates = session.hyperparameters["accumulates"]
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0) if accumulates else \
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
data = TensorDataset(torch.randn(90, 12), torch.randint(0, 4, (90,)))
loader = DataLoader(data, batch_size=session.hyperparameters["global_batch_size"], shuffle=True)
average = Average()
session.keep(average=average)
model, optimizer, loader, schedule = session.wrap(model, optimizer, loader, schedule)
# A state to begin with, which a run that goes on has changed since: its checkpoint has that.
copies = [parameter.detach().clone() for parameter in model.parameters()]
earlier = type(optimizer)(copies, lr=0.01)
for copy in copies:
    copy.grad = 0.1 * copy
earlier.step()
optimizer.load_state_dict(earlier.state_dict())
for epoch in range(5):
    for index, (inputs, labels) in enumerate(loader):
        adds = accumulates and index % 3 != 2
        with session.no_sync() if adds else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
        if adds:
            continue
        optimizer.step()
        optimizer.zero_grad()
        average.add(loss)
        session.log("average", average.value)
        schedule.step(session.mean(loss.item())) if accumulates else schedule.step()
        if os.path.exists(session.hyperparameters["slow"]):
            time.sleep(0.05)
