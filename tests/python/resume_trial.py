"""The same as resume_script.py as a Trial, with state of its own."""
import os
import time

import dtrain
import numpy
import torch
from drawing_data import DrawingData
from torch import nn
from torch.utils.data import DataLoader


class Resumed(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        torch.manual_seed(3)
        self.model = context.wrap_model(nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4)))
        optimizer = getattr(torch.optim, context.hyperparameters["optimizer"])(self.model.parameters(), lr=0.01)
        # A state to begin with, which a run that goes on has changed since: its checkpoint has that.
        copies = [parameter.detach().clone() for parameter in self.model.parameters()]
        earlier = type(optimizer)(copies, lr=0.01)
        for copy in copies:
            copy.grad = 0.1 * copy
        earlier.step()
        optimizer.load_state_dict(earlier.state_dict())
        context.wrap_optimizer(optimizer)
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60))
        self.seen = 0
        self.numbers = numpy.random.default_rng(5)  # its state has numbers of 128 bits
        self.walk = numpy.arange(5, dtype=numpy.float32)
        self.center = torch.zeros(12)
        self.data = DrawingData(torch.randn(90, 12), torch.randint(0, 4, (90,)))

    def training_loader(self):
        return DataLoader(self.data, self.context.global_batch_size, shuffle=True)

    def validation_loader(self):
        return DataLoader(self.data, 30)

    def evaluate_batch(self, batch):
        return {"loss": nn.functional.cross_entropy(self.model(batch[0] - self.center), batch[1])}

    def train_batch(self, batch):
        inputs, labels = batch
        # What it has seen changes what it learns: a state that is lost shows in the weights.
        self.center.mul_(0.9).add_(inputs.mean(0), alpha=0.1)
        self.center.add_(0.01 * self.numbers.random() + 0.001 * float(self.walk[2]))
        self.walk = numpy.roll(self.walk, 1)
        self.seen += 1
        loss = nn.functional.cross_entropy(self.model(inputs - self.center), labels) / (1 + 0.01 * self.seen)
        self.context.backward(loss)
        if os.path.exists(self.context.hyperparameters["slow"]):
            time.sleep(0.05)
        return {"loss": loss}

    def state_dict(self):
        return {"seen": self.seen, "more": {"center": self.center, "numbers": self.numbers.bit_generator.state,
                                            "walk": self.walk}}

    def load_state_dict(self, state):
        self.seen, self.center = state["seen"], state["more"]["center"].clone()
        self.numbers.bit_generator.state, self.walk = state["more"]["numbers"], state["more"]["walk"]
