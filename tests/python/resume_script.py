"""Trains until the session ends, with a schedule and a state of the optimizer to begin with; sleeps so that it can be
killed in the middle. Where it accumulates, three batches are a step, and the schedule follows the loss. The loss has a parameter,
and the model a state that its weights have not."""
import contextlib
import os
import time

import dtrain
import torch
from average import Average
from drawing_data import DrawingData
from torch import nn
from torch.utils.data import DataLoader



class Fading(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones((), dtype=torch.complex64), persistent=False)

    def forward(self, x):
        if self.training:
            self.factor *= 0.995 + 0.01j
        return x * self.factor.abs()


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x, labels):
        return nn.functional.cross_entropy(x * self.temperature, labels)


session = dtrain.init()
torch.manual_seed(3)
if session.hyperparameters["convolves"]:
    first = nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 2, padding=1), nn.Flatten(), nn.Linear(72, 16))
else:
    first = nn.Linear(12, 16)
model, loss_of = nn.Sequential(first, Fading(), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4)), Tempered()
parameters = [*model.parameters(), *loss_of.parameters()]
optimizer = getattr(torch.optim, session.hyperparameters["optimizer"])(parameters, lr=0.01)
accumulates = session.hyperparameters["accumulates"]
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0) if accumulates else \
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
data = DrawingData(torch.randn(90, 12), torch.randint(0, 4, (90,)))
loader = DataLoader(data, batch_size=session.hyperparameters["global_batch_size"], shuffle=True)
average = Average()
session.keep(average=average)
model, optimizer, loader, schedule = session.wrap(model, optimizer, loader, schedule)
# A state to begin with, which a run that goes on has changed since: its checkpoint has that.
copies = [parameter.detach().clone() for parameter in parameters]
earlier = type(optimizer)(copies, lr=0.01)
for copy in copies:
    copy.grad = 0.1 * copy
earlier.step()
optimizer.load_state_dict(earlier.state_dict())
for epoch in range(5):
    for index, (inputs, labels) in enumerate(loader):
        adds = accumulates and index % 3 != 2
        with session.no_sync() if adds else contextlib.nullcontext():
            loss = loss_of(model(inputs), labels)
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
